// SPDX-License-Identifier: Apache-2.0
// The options of the backend, read.
#pragma once

#include "gpu/move_options.hpp"
#include "host_link/settings.hpp"

#include <span>

namespace headrace::cuda_ipc {

struct Settings {
  gpu::MoveOptions gpu;
  host_link::LinkSettings links;
};

[[nodiscard]] std::span<const headrace_option_v1> option_rows();

///   errors   invalid_argument (names the option and its value)
[[nodiscard]] Result<Settings> read_settings(const plugin::CreateArgs& args);

}  // namespace headrace::cuda_ipc
