// SPDX-License-Identifier: Apache-2.0
// The common base of tests of kernel families: the host's half and the CPU references over the fake driver.
// The device code itself runs on GPUs only.
#pragma once

#include "gpu/device_memory.hpp"
#include "gpu/kernel_family.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"
#include "unit/gpu/gpu_test.hpp"

#include <headrace/plugin/kernels/pages_v1.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace headrace::gpu {

class KernelsTest : public GpuTest {
 protected:
  KernelsTest()
      : device(open()),
        stream(Stream::make(device).value()),
        kernels(Kernels::open(library(), device).value()) {}

  /// Random bytes in device memory.
  DeviceMemory filled(std::size_t bytes) {
    auto memory = DeviceMemory::allocate(device, bytes).value();
    std::generate_n(at(memory), bytes, [this] { return static_cast<unsigned char>(random()); });
    return memory;
  }
  template <class T>
  DeviceMemory table(const std::vector<T>& values) {
    auto memory = DeviceMemory::allocate(device, values.size() * sizeof(T)).value();
    std::memcpy(at(memory), values.data(), values.size() * sizeof(T));
    return memory;
  }
  static unsigned char* at(const DeviceMemory& memory) {
    return reinterpret_cast<unsigned char*>(memory.address());
  }
  template <class T>
  static const T* column(const DeviceMemory& memory) {
    return reinterpret_cast<const T*>(memory.address());
  }
  /// Pages of `bytes` bytes, one for each index; null: page i has the index i.
  static headrace_move_side_v1 side(cuda::Address base, std::uint64_t stride, std::uint64_t bytes,
                                    const DeviceMemory* indices = nullptr) {
    headrace_move_side_v1 made{};
    made.columns.base_offset = base;
    made.columns.stride_bytes = stride;
    made.columns.page_bytes = bytes;
    if (indices != nullptr) made.columns.indices = column<std::uint32_t>(*indices);
    return made;
  }
  static std::vector<unsigned char> copy_of(const DeviceMemory& memory) {
    return {at(memory), at(memory) + memory.bytes()};
  }
  std::vector<std::uint32_t> shuffled(std::uint32_t count) {
    std::vector<std::uint32_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0u);
    std::ranges::shuffle(numbers, random);
    return numbers;
  }

  std::mt19937 random{4711};
  std::shared_ptr<const Device> device;
  Stream stream;
  std::shared_ptr<const Kernels> kernels;
};

}  // namespace headrace::gpu
