// SPDX-License-Identifier: Apache-2.0
// One image in one context, with all of its kernels found and loaded; and how they are launched.
#pragma once

#include "kernels/common/family.hpp"

#include <headrace/plugin/kernels_v1.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace headrace::kernels {

/// The driver's launch description. tests/unit/gpu compares it with the one of src/vendor/cuda.
struct LaunchConfig {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  void* attributes = nullptr;
  unsigned attribute_count = 0;
};

/// The driver's numbers that this library returns itself.
inline constexpr std::int32_t succeeded = 0;
inline constexpr std::int32_t invalid_value = 1;

class KernelSet {
 public:
  /// Loads the image, and all kernels of the families. `args.failed` names the step that failed.
  [[nodiscard]] static std::int32_t open(headrace_kernels_open_v1& args,
                                         std::span<const Family* const> families,
                                         std::unique_ptr<KernelSet>& set);
  /// Unloads the image.
  [[nodiscard]] std::int32_t close() { return driver_.module_unload(module_); }

  /// The set that an entry of a family's table was given.
  [[nodiscard]] static const KernelSet& of(void* kernels) { return *static_cast<const KernelSet*>(kernels); }

  [[nodiscard]] std::uint32_t multiprocessors() const { return multiprocessors_; }
  /// The loaded functions of a family. There are few families: a search costs less than a map.
  template <class Functions>
  [[nodiscard]] const Functions& functions_of(const Family& family) const {
    const auto loaded = std::ranges::find(loaded_, &family, &Loaded::family);
    return *std::launder(reinterpret_cast<const Functions*>(loaded->functions.get()));
  }

  /// Queues `rows` rows of `blocks` blocks of `threads` threads of a kernel that takes one argument by value.
  template <class Args>
  [[nodiscard]] std::int32_t launch(void* function, std::uint64_t blocks, unsigned threads, const Args& args,
                                    void* stream, unsigned rows = 1) const {
    LaunchConfig config;
    config.grid_x = static_cast<unsigned>(blocks);
    config.grid_y = rows;
    config.block_x = threads;
    config.stream = stream;
    void* parameters[] = {const_cast<Args*>(&args)};  // the driver copies it
    return driver_.launch_kernel_ex(&config, function, parameters, nullptr);
  }

 private:
  struct Loaded {
    const Family* family;
    std::unique_ptr<std::byte[]> functions;  // the family's struct of functions
  };

  KernelSet(const headrace_kernels_driver_v1& driver, std::uint32_t multiprocessors)
      : driver_(driver), multiprocessors_(multiprocessors) {}
  [[nodiscard]] std::int32_t load(const Family& family, headrace_kernels_open_v1& args);

  const headrace_kernels_driver_v1& driver_;
  const std::uint32_t multiprocessors_;
  void* module_ = nullptr;
  std::vector<Loaded> loaded_;
};

}  // namespace headrace::kernels
