// SPDX-License-Identifier: Apache-2.0
// What pages take between GPUs, and between a GPU and host memory: for choosing a path, and for how long a
// thread looks before it sleeps.
//
// Two H200 with NVLink and PCIe 5 (bench/results, 2026-11-22 and 23): pages of 4 KiB to 16 MiB at 332 to 386
// GB/s between them, at 49 to 54 to and from host memory; a small request by copy engine in 8 us, by the
// courier in 4.
#pragma once

#include "gpu/prepared_move.hpp"

#include <algorithm>
#include <cstdint>

namespace headrace::gpu {

struct PathSpeed {
  double fixed_ns;
  double bytes_per_second;
  const char* method;  ///< as `explain` says it
};

inline constexpr PathSpeed between_gpus{8'000, 350e9, "measured on H200 with NVLink"};
inline constexpr PathSpeed with_host_memory{8'000, 50e9, "measured on H200 with PCIe 5"};
inline constexpr double courier_ns = 4'500;

inline constexpr const PathSpeed& speed_of(Touches touches) {
  return touches == Touches::gpus ? between_gpus : with_host_memory;
}

/// Until when a thread looks for the end of a post that begins at `now_ns`: with some grace, and not longer
/// than a wake-up is lost in the time of the transfer.
inline std::uint64_t look_until_ns(std::uint64_t now_ns, Touches touches, std::uint64_t bytes) {
  constexpr std::uint64_t launch_ns = 30'000, longest_look_ns = 2'000'000;
  const double bytes_per_ns = speed_of(touches).bytes_per_second / 1e9;
  const auto expected = static_cast<std::uint64_t>(1.5 * static_cast<double>(bytes) / bytes_per_ns);
  return now_ns + std::min(launch_ns + expected, longest_look_ns);
}

}  // namespace headrace::gpu
