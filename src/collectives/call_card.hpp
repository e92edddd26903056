// SPDX-License-Identifier: Apache-2.0
// What a rank calls, as the other ranks compare it with their calls (hint `check`).
#pragma once

#include <headrace/comm_call.hpp>
#include <headrace/result.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::collectives {

struct CallCard {
  std::string text;  ///< "all_reduce of 10 float32 with sum", for errors
  std::string must;  ///< what must be the same on all ranks; it has no counts
  std::string way;   ///< the algorithm; shown where the ranks' texts are the same
  CommOperation kind = CommOperation::barrier;
  int root = -1;
  /// Elements for each rank, and from each. One number: the same for all; none: nothing.
  std::vector<std::uint64_t> gives, expects;

  [[nodiscard]] static CallCard of(const CommCall& call, int ranks, std::string way);
  [[nodiscard]] std::string encode() const;
  ///   errors  corrupt (it is no card)
  [[nodiscard]] static Result<CallCard> decode(std::string_view bytes);
};

/// How the calls of all ranks differ, by rank; nullopt: they fit. The same on every rank.
[[nodiscard]] std::optional<Error> difference(std::span<const CallCard> cards);

}  // namespace headrace::collectives
