// SPDX-License-Identifier: Apache-2.0
// What a rank tells ranks of other nodes before they have a way to it: its configuration, its number, and
// where its window is. It is the note of a region of its agent, and travels with the agent's metadata.
#pragma once

#include <headrace/moe.hpp>

#include <string>
#include <string_view>

namespace headrace::moe {

/// The name of that region.
[[nodiscard]] std::string way_name(const MoEConfig& config);

///   way  Network::way
[[nodiscard]] std::string way_text(const MoEConfig& config, std::string_view way);

/// The way in the way_text of a peer.
///   errors  invalid_argument (another configuration, the text of another rank), corrupt
[[nodiscard]] Result<std::string> way_of(const MoEConfig& config, int peer, std::string_view theirs);

}  // namespace headrace::moe
