// SPDX-License-Identifier: Apache-2.0
// The host's half of the family moe.
#pragma once

#include "kernels/common/family.hpp"
#include "kernels/moe/launch.cuh"

#include <cstdint>
#include <optional>

namespace headrace::kernels::moe {

extern constinit const Family family;

/// Nothing: the shape is not possible.
[[nodiscard]] std::optional<Common> common_of(const headrace_moe_rank_v1& rank);

/// The launches of `blocks` blocks. Nothing: an argument is not possible.
[[nodiscard]] std::optional<DispatchLaunch> dispatch_of(const headrace_moe_dispatch_v1& args,
                                                        std::uint32_t blocks);
/// What comes before a dispatch with replicas; else nothing.
[[nodiscard]] std::optional<ChooseLaunch> choose_of(const headrace_moe_dispatch_v1& args);
[[nodiscard]] std::optional<CombineLaunch> combine_of(const headrace_moe_combine_v1& args,
                                                      std::uint32_t blocks);
[[nodiscard]] std::optional<WindowRowsLaunch> window_rows_of(const headrace_moe_combine_memory_v1& args);

}  // namespace headrace::kernels::moe
