// SPDX-License-Identifier: Apache-2.0
// The options of the backend: one table for people, one struct for the code.
#pragma once

#include "gpu/move_options.hpp"

#include <cstdint>
#include <span>

namespace headrace::local {

struct Settings {
  std::uint64_t inline_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t stream_bytes = 0;
  std::uint32_t threads = 0;  ///< 0: see the option's sentence
  bool numa = true;
  gpu::MoveOptions gpu;
};

[[nodiscard]] std::span<const headrace_option_v1> option_rows();

///   errors   invalid_argument (names the option and its value)
[[nodiscard]] Result<Settings> read_settings(const plugin::CreateArgs& args);

}  // namespace headrace::local
