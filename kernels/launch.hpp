// SPDX-License-Identifier: Apache-2.0
// One set of loaded kernels, and how a launch of it is worded to the driver.
#pragma once

#include <headrace/plugin/kernels_v1.h>

#include <cstdint>

namespace headrace::kernels {

/// The driver's launch description. tests/unit/gpu holds it against the one of src/vendor/cuda.
struct LaunchConfig {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  void* attributes = nullptr;
  unsigned attribute_count = 0;
};

/// The driver's numbers that are answered from here.
inline constexpr std::int32_t succeeded = 0;
inline constexpr std::int32_t invalid_value = 1;

/// An image in one context, all of its kernels found and loaded.
struct KernelSet {
  const headrace_kernels_driver_v1* driver = nullptr;
  std::uint32_t multiprocessors = 0;
  void* module = nullptr;
  void* move_aligned_pages = nullptr;
  void* move_small_pages = nullptr;
  void* move_row_pages = nullptr;
  void* move_any_pages = nullptr;
  void* move_checked_aligned_pages = nullptr;
  void* move_checked_small_pages = nullptr;
  void* move_checked_row_pages = nullptr;
  void* move_checked_any_pages = nullptr;
  void* move_grid_tiles = nullptr;
  void* move_grid_small = nullptr;
  void* move_grid_aligned = nullptr;
  void* move_grid_any = nullptr;
  void* move_checked_grid_tiles = nullptr;
  void* move_checked_grid_small = nullptr;
  void* move_checked_grid_aligned = nullptr;
  void* move_checked_grid_any = nullptr;
  void* move_parts = nullptr;
  void* move_few = nullptr;
  void* move_one = nullptr;
  void* courier = nullptr;

  /// Queues `blocks` blocks of `threads` threads of a kernel that takes one argument by value.
  template <class Args>
  [[nodiscard]] std::int32_t launch(void* function, std::uint64_t blocks, unsigned threads, const Args& args,
                                    void* stream) const {
    LaunchConfig config;
    config.grid_x = static_cast<unsigned>(blocks);
    config.block_x = threads;
    config.stream = stream;
    void* parameters[] = {const_cast<Args*>(&args)};  // the driver copies it
    return driver->launch_kernel_ex(&config, function, parameters, nullptr);
  }
};

}  // namespace headrace::kernels
