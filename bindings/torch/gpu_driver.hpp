// SPDX-License-Identifier: Apache-2.0
// Functions of a GPU's driver that describe the GPU, found by name: no header of CUDA or ROCm is needed, and
// one source serves both. tests/rocm compares the signatures with HIP's header where it is installed.
#pragma once

#include <cstddef>

namespace headrace::torch_runtime {

/// All return 0 on success. Null if there is no driver.
struct GpuDriver {
  int (*init)(unsigned flags) = nullptr;
  int (*device)(int* device, int ordinal) = nullptr;
  int (*name)(char* text, int capacity, int device) = nullptr;
  int (*memory)(std::size_t* bytes, int device) = nullptr;
  int (*free_memory)(std::size_t* free_bytes,
                     std::size_t* total_bytes) = nullptr;  ///< of the current context or device

  // NVIDIA's: a context is made current.
  int (*retain)(void** context, int device) = nullptr;
  int (*release)(int device) = nullptr;
  int (*push)(void* context) = nullptr;
  int (*pop)(void** context) = nullptr;
  /// For AMD the driver's architecture number is not the name that packages use ("gfx942").
  int (*attribute)(int* value, int attribute, int device) = nullptr;

  // AMD's: a device is made current; its contexts are deprecated.
  int (*get_current)(int* device) = nullptr;
  int (*set_current)(int device) = nullptr;

  /// NVIDIA's driver, from the system.
  [[nodiscard]] static GpuDriver nvidia();
  /// HIP's runtime, from the torch that is loaded.
  [[nodiscard]] static GpuDriver amd();
  [[nodiscard]] bool there() const noexcept {
    return init != nullptr && device != nullptr && name != nullptr && memory != nullptr &&
           free_memory != nullptr;
  }
};

}  // namespace headrace::torch_runtime
