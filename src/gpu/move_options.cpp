// SPDX-License-Identifier: Apache-2.0
#include "gpu/move_options.hpp"

#include <algorithm>
#include <chrono>

namespace headrace::gpu {
namespace {

constexpr std::uint64_t most_multiprocessors = 4096;
constexpr std::uint64_t most_staging_bytes = 1ULL << 40;
constexpr std::uint64_t most_courier_bytes = 1 << 20;        // which nobody behind it waits for long
constexpr auto most_courier_idle = std::chrono::seconds(1);  // as long as a wait for the whole GPU may take

CourierSettings read_courier_settings(BackendOptions& options) {
  CourierSettings settings;
  settings.on = options.enabled("courier");
  settings.most_bytes = options.bytes("courier_bytes", 0, most_courier_bytes);
  settings.idle = options.duration("courier_idle", std::chrono::nanoseconds(0), most_courier_idle);
  settings.stay = std::max<std::chrono::nanoseconds>(settings.stay, settings.idle);
  return settings;
}

}  // namespace

MoveOptions read_move_options(BackendOptions& options) {
  MoveOptions read;
  MoveSettings& moves = read.moves;
  moves.multiprocessors =
      static_cast<std::uint32_t>(options.count("multiprocessors", 0, most_multiprocessors));
  moves.few_bytes = options.bytes("few_bytes", 0, UINT64_MAX);
  moves.copy_engine_bytes = options.bytes("copy_engine_bytes", 0, UINT64_MAX);
  moves.host_copy_bytes = options.bytes("host_copy_bytes", 0, UINT64_MAX);
  moves.gpu_copy_bytes = options.bytes("gpu_copy_bytes", 0, UINT64_MAX);
  moves.courier = read_courier_settings(options);
  read.staging_bytes = options.bytes("staging_bytes", 0, most_staging_bytes);
  read.pins_registered = options.automatic("pin_registered");
  return read;
}

}  // namespace headrace::gpu
