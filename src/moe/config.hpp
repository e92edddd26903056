// SPDX-License-Identifier: Apache-2.0
// What follows from a configuration.
#pragma once

#include "moe/layout.hpp"

#include <headrace/moe.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headrace::moe {

/// Of a configuration that `check` allows.
[[nodiscard]] WindowLayout window_layout(const MoEConfig& config);

/// The fields in which all ranks agree, a line each: "top_k 8". At most WindowLayout::config_bytes.
[[nodiscard]] std::string config_text(const MoEConfig& config);

/// What the window of a rank holds: config_text, a line with the rank, and one with its GPU, if it has one.
///   gpu  a name that is the same in every process
[[nodiscard]] std::string window_text(const MoEConfig& config, std::string_view gpu = {});
/// The GPU of a window_text; empty: there is none.
[[nodiscard]] std::string_view gpu_of_window(std::string_view theirs);
/// Bytes of the region that the CPUs of all ranks map: the window, or with a GPU its head and the words.
[[nodiscard]] std::size_t region_bytes(const MoEConfig& config);
/// Refuses the window_text of another rank than `peer`.
///   errors  invalid_argument
[[nodiscard]] Result<void> check_window_rank(int peer, std::string_view theirs);

/// A number of 53 bits for a list of agents, not 0: two lists that differ have different ones, but for rare
/// chance.
[[nodiscard]] std::uint64_t number_of_list(std::span<const std::string> agents);

/// Whether experts may write their results into the windows of other ranks.
///   errors  not_supported (another layout, float8_combine)
[[nodiscard]] Result<void> check_window_takes_sums(const MoEConfig& config);

/// Refuses a configuration of another rank that differs: the field and both values.
///   errors  invalid_argument, corrupt (`theirs` is no such text)
[[nodiscard]] Result<void> compare_configs(int rank, std::string_view ours, int peer,
                                           std::string_view theirs);

}  // namespace headrace::moe
