// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/settings.hpp"

#include "base/errors.hpp"

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
constexpr std::uint64_t most_courier_bytes = 1 << 20;  // which nobody behind it waits for long
constexpr auto most_courier_idle = std::chrono::seconds(1);

Result<gpu::CourierSettings> read_courier_settings(const BackendOptions& options) {
  gpu::CourierSettings settings;
  HEADRACE_TRY(on, options.enabled("courier"));
  settings.on = on;
  HEADRACE_TRY(most_bytes, options.number("courier_bytes", 0, most_courier_bytes));
  settings.most_bytes = most_bytes;
  HEADRACE_TRY(idle, options.duration("courier_idle"));
  if (idle > most_courier_idle)
    return make_error(
        Code::invalid_argument,
        "option cuda_ipc.courier_idle is {} ms and must be at most {}: who waits for the whole GPU waits "
        "as long",
        idle / std::chrono::milliseconds(1), most_courier_idle / std::chrono::milliseconds(1));
  settings.idle = idle;
  settings.stay = std::max<std::chrono::nanoseconds>(settings.stay, idle);
  return settings;
}

}  // namespace

std::span<const headrace_option_v1> option_rows() { return rows; }

Result<Settings> read_settings(const plugin::CreateArgs& args) {
  const BackendOptions options("cuda_ipc", rows, args);
  Settings settings;
  HEADRACE_TRY(multiprocessors, options.number("multiprocessors", 0, most_multiprocessors));
  settings.moves.multiprocessors = static_cast<std::uint32_t>(multiprocessors);
  HEADRACE_TRY(few_bytes, options.number("few_bytes", 0, UINT64_MAX));
  settings.moves.few_bytes = few_bytes;
  HEADRACE_TRY(copy_engine_bytes, options.number("copy_engine_bytes", 0, UINT64_MAX));
  settings.moves.copy_engine_bytes = copy_engine_bytes;
  HEADRACE_TRY(host_copy_bytes, options.number("host_copy_bytes", 0, UINT64_MAX));
  settings.moves.host_copy_bytes = host_copy_bytes;
  HEADRACE_TRY(gpu_copy_bytes, options.number("gpu_copy_bytes", 0, UINT64_MAX));
  settings.moves.gpu_copy_bytes = gpu_copy_bytes;
  HEADRACE_TRY(staging_bytes, options.number("staging_bytes", 0, most_staging_bytes));
  settings.staging_bytes = staging_bytes;
  HEADRACE_TRY(pins_registered, options.automatic("pin_registered"));
  settings.pins_registered = pins_registered;
  HEADRACE_TRY(courier, read_courier_settings(options));
  settings.moves.courier = courier;
  HEADRACE_TRY(links, host_link::read_link_settings(options));
  settings.links = links;
  return settings;
}

}  // namespace headrace::cuda_ipc
