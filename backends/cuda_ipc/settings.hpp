// SPDX-License-Identifier: Apache-2.0
// The options of the backend, read.
#pragma once

#include "gpu/prepared_move.hpp"

#include <headrace/plugin/backend.hpp>

#include <span>

namespace headrace::cuda_ipc {

[[nodiscard]] std::span<const headrace_option_v1> option_rows();

///   errors   invalid_argument (names the option and its value)
[[nodiscard]] Result<gpu::MoveSettings> read_settings(const plugin::CreateArgs& args);

}  // namespace headrace::cuda_ipc
