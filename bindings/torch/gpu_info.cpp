// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/gpu_info.hpp"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>

namespace headrace::torch_runtime {
namespace {

constexpr int compute_capability_major = 75,
              compute_capability_minor = 76;  // CUdevice_attribute, as the driver's ABI has them

/// The driver's functions; they stay null without a driver, and on AMD's GPUs.
struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*memory)(std::size_t*, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*release)(int) = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*free_memory)(std::size_t*, std::size_t*) = nullptr;

  static Driver open() {
    Driver driver;
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return driver;
    const auto bind = [library](const char* symbol, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
    };
    bind("cuInit", driver.init);
    bind("cuDeviceGet", driver.device);
    bind("cuDeviceGetName", driver.name);
    bind("cuDeviceTotalMem_v2", driver.memory);
    bind("cuDeviceGetAttribute", driver.attribute);
    bind("cuDevicePrimaryCtxRetain", driver.retain);
    bind("cuDevicePrimaryCtxRelease_v2", driver.release);
    bind("cuCtxPushCurrent_v2", driver.push);
    bind("cuCtxPopCurrent_v2", driver.pop);
    bind("cuMemGetInfo_v2", driver.free_memory);
    return driver;
  }
};

/// What all processes use of a device; 0 if the driver does not say.
std::uint64_t used_bytes(const Driver& driver, int device) {
  void* context = nullptr;
  if (driver.retain(&context, device) != 0) return 0;
  std::size_t free = 0, total = 0;
  if (driver.push(context) == 0) {
    if (driver.free_memory(&free, &total) != 0) free = total = 0;
    (void)driver.pop(&context);
  }
  (void)driver.release(device);
  return total - free;
}

void ask_driver(int index, headrace_device_info_v1& info) {
  static const Driver driver = Driver::open();
  int device = 0;
  if (driver.init == nullptr || driver.init(0) != 0 || driver.device(&device, index) != 0) return;
  driver.name(info.name, sizeof info.name, device);
  std::size_t bytes = 0;
  if (driver.memory(&bytes, device) == 0) info.memory_bytes = bytes;
  int major = 0, minor = 0;
  if (driver.attribute(&major, compute_capability_major, device) == 0 &&
      driver.attribute(&minor, compute_capability_minor, device) == 0)
    std::snprintf(info.compute_capability, sizeof info.compute_capability, "%d%d", major, minor);
  constexpr std::size_t with_used =
      offsetof(headrace_device_info_v1, used_bytes) + sizeof(headrace_device_info_v1::used_bytes);
  if (info.struct_size >= with_used) info.used_bytes = used_bytes(driver, device);
}

}  // namespace

int gpu_count() noexcept {
  if (!at::hasCUDA() && !at::hasHIP()) return 0;
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount();
}

void gpu_info(int index, headrace_device_info_v1& info) {
  const int count = gpu_count();
  TORCH_CHECK(index >= 0 && index < count, "there is no GPU ", index, ": torch sees ", count);
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // else its allocator knows no device yet
  ask_driver(index, info);
  const auto stats =
      c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(index));
  info.held_bytes = static_cast<std::uint64_t>(stats.allocated_bytes[0].current);
  info.held_peak_bytes = static_cast<std::uint64_t>(stats.allocated_bytes[0].peak);
}

}  // namespace headrace::torch_runtime
