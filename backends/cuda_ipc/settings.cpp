// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/settings.hpp"

#include <array>

namespace headrace::cuda_ipc {
namespace {

constexpr auto rows = gpu::with_move_options(
    std::array{host_link::ring_bytes_row, host_link::queue_bytes_row, host_link::handshake_timeout_row});

}  // namespace

std::span<const headrace_option_v1> option_rows() { return rows; }

Result<Settings> read_settings(const plugin::CreateArgs& args) {
  BackendOptions options("cuda_ipc", rows, args);
  Settings settings{.gpu = gpu::read_move_options(options), .links = host_link::read_link_settings(options)};
  return options.checked(settings);
}

}  // namespace headrace::cuda_ipc
