// SPDX-License-Identifier: Apache-2.0
// What a caller gives and gets beside rows: casts, scales, payloads. The rules that hold on CPUs and on GPUs.
#pragma once

#include <headrace/moe.hpp>

#include <cstdint>

namespace headrace::moe {

/// Of a row that a caller gives.
[[nodiscard]] inline std::int64_t given_row_bytes(const MoEConfig& config, MoECast cast) {
  return cast == MoECast::none ? config.row_bytes() : config.hidden * 2;
}

/// Whether the rows of tokens, of which there are some, are what the configuration says.
///   errors  invalid_argument (what was expected, what is given)
[[nodiscard]] Result<void> check_columns(const MoEConfig& config, const MoETokens& tokens);

/// Whether there is memory for all that comes.
///   errors  invalid_argument
[[nodiscard]] Result<void> check_memory(const MoEConfig& config, const MoERows& rows);

}  // namespace headrace::moe
