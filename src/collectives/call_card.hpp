// SPDX-License-Identifier: Apache-2.0
// What a rank calls, as the other ranks compare it with their calls (hint `check`).
#pragma once

#include "wire/comm_cards.hpp"

#include <headrace/comm_call.hpp>
#include <headrace/result.hpp>

#include <optional>
#include <span>
#include <string>

namespace headrace::collectives {

using wire::CallCard;

[[nodiscard]] CallCard card_of_call(const CommCall& call, int ranks, std::string way);

/// How the calls of all ranks differ, by rank; nullopt: they fit. The same on every rank.
[[nodiscard]] std::optional<Error> difference(std::span<const CallCard> cards);

}  // namespace headrace::collectives
