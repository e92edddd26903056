// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/settings.hpp"

#include <algorithm>
#include <array>
#include <chrono>

namespace headrace::cuda_ipc {
namespace {

constexpr std::array rows{
    headrace_option_v1{"multiprocessors", "64", "count",
                       "of the GPU that a kernel may occupy; 0: all. On H200 64 of 132 move 98 to 99 % of "
                       "what all do, 32 move 95 "
                       "to 99 %, 16 move 94 to 97 %",
                       0, 0},
    headrace_option_v1{"few_bytes", "64KiB", "bytes",
                       "lists of at most 8 parts and so many bytes travel inside the launch, without a table",
                       0, 0},
    headrace_option_v1{"copy_engine_bytes", "1", "bytes",
                       "what lies in one stretch on both sides and is at least so long goes by copy engine",
                       0, 0},
    headrace_option_v1{
        "host_copy_bytes", "4MiB", "bytes",
        "to and from host memory, at most 64 stretches that are all at least so long go by copy engine", 0,
        0},
    headrace_option_v1{"gpu_copy_bytes", "4MiB", "bytes",
                       "between GPUs, at most 256 stretches that are all at least so long go by copy engine, "
                       "in one call; 0: none do",
                       0, 0},
    headrace_option_v1{"pin_registered", "auto", "auto or off",
                       "off: host memory that was registered is never pinned for GPUs, but copied through "
                       "pinned memory",
                       0, 0},
    headrace_option_v1{"staging_bytes", "32MiB", "bytes",
                       "of pinned memory at most, through which host memory that cannot be pinned is copied; "
                       "0: such memory is refused",
                       0, 0},
    headrace_option_v1{
        "courier", "off", "on or off",
        "on: a kernel stays on the GPU, as long as it has work, and moves small requests without a launch "
        "for each. It occupies one multiprocessor, and who waits for the whole GPU waits for it",
        0, 0},
    headrace_option_v1{"courier_bytes", "64KiB", "bytes",
                       "requests of at most 10 stretches and so many bytes are the courier's", 0, 0},
    headrace_option_v1{
        "courier_idle", "200us", "duration",
        "without work the courier leaves after so long, and is launched anew for the next request", 0, 0},
    host_link::ring_bytes_row,
    host_link::queue_bytes_row,
    host_link::handshake_timeout_row,
};

constexpr std::uint64_t most_multiprocessors = 4096;
constexpr std::uint64_t most_staging_bytes = 1ULL << 40;
constexpr std::uint64_t most_courier_bytes = 1 << 20;        // which nobody behind it waits for long
constexpr auto most_courier_idle = std::chrono::seconds(1);  // as long as a wait for the whole GPU may take

gpu::CourierSettings read_courier_settings(BackendOptions& options) {
  gpu::CourierSettings settings;
  settings.on = options.enabled("courier");
  settings.most_bytes = options.bytes("courier_bytes", 0, most_courier_bytes);
  settings.idle = options.duration("courier_idle", std::chrono::nanoseconds(0), most_courier_idle);
  settings.stay = std::max<std::chrono::nanoseconds>(settings.stay, settings.idle);
  return settings;
}

}  // namespace

std::span<const headrace_option_v1> option_rows() { return rows; }

Result<Settings> read_settings(const plugin::CreateArgs& args) {
  BackendOptions options("cuda_ipc", rows, args);
  Settings settings;
  settings.moves.multiprocessors =
      static_cast<std::uint32_t>(options.count("multiprocessors", 0, most_multiprocessors));
  settings.moves.few_bytes = options.bytes("few_bytes", 0, UINT64_MAX);
  settings.moves.copy_engine_bytes = options.bytes("copy_engine_bytes", 0, UINT64_MAX);
  settings.moves.host_copy_bytes = options.bytes("host_copy_bytes", 0, UINT64_MAX);
  settings.moves.gpu_copy_bytes = options.bytes("gpu_copy_bytes", 0, UINT64_MAX);
  settings.staging_bytes = options.bytes("staging_bytes", 0, most_staging_bytes);
  settings.pins_registered = options.automatic("pin_registered");
  settings.moves.courier = read_courier_settings(options);
  settings.links = host_link::read_link_settings(options);
  return options.checked(settings);
}

}  // namespace headrace::cuda_ipc
