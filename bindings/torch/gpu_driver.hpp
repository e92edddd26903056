// SPDX-License-Identifier: Apache-2.0
// The functions of a GPU's driver that tell of the GPU, found by name: no header of CUDA or ROCm is needed,
// and one source serves both. tests/rocm holds the shapes against HIP's header, where that is to be had.
#pragma once

#include <cstddef>

namespace headrace::torch_runtime {

/// All answer 0 if they worked. Null where there is no driver.
struct GpuDriver {
  int (*init)(unsigned flags) = nullptr;
  int (*device)(int* device, int ordinal) = nullptr;
  int (*name)(char* text, int capacity, int device) = nullptr;
  int (*memory)(std::size_t* bytes, int device) = nullptr;
  int (*free_memory)(std::size_t* free_bytes, std::size_t* total_bytes) = nullptr;  ///< of what is current

  // NVIDIA's: a context is made current.
  int (*retain)(void** context, int device) = nullptr;
  int (*release)(int device) = nullptr;
  int (*push)(void* context) = nullptr;
  int (*pop)(void** context) = nullptr;
  /// What AMD's says of an architecture is not what packages name it by ("gfx942").
  int (*attribute)(int* value, int attribute, int device) = nullptr;

  // AMD's: a device is; its contexts are on their way out.
  int (*get_current)(int* device) = nullptr;
  int (*set_current)(int device) = nullptr;

  /// NVIDIA's driver, from the system.
  [[nodiscard]] static GpuDriver nvidia();
  /// HIP's runtime, as it came with the torch that is loaded.
  [[nodiscard]] static GpuDriver amd();
  [[nodiscard]] bool there() const noexcept {
    return init != nullptr && device != nullptr && name != nullptr && memory != nullptr &&
           free_memory != nullptr;
  }
};

}  // namespace headrace::torch_runtime
