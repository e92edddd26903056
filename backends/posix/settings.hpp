// SPDX-License-Identifier: Apache-2.0
// The options of the backend: one table for readers, one struct for the code.
#pragma once

#include <headrace/plugin/backend.hpp>

#include <cstdint>
#include <span>

namespace headrace::posix {

struct Settings {
  std::uint32_t threads = 0;
  std::uint64_t piece_bytes = 0;
  std::uint64_t queue_depth = 0;
};

[[nodiscard]] std::span<const headrace_option_v1> option_rows();

///   errors   invalid_argument (the option and its value)
[[nodiscard]] Result<Settings> read_settings(const plugin::CreateArgs& args);

}  // namespace headrace::posix
