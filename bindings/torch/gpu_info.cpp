// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/gpu_info.hpp"

#include "bindings/torch/gpu_driver.hpp"
#include "bindings/torch/torch_version.hpp"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>

namespace headrace::torch_runtime {
namespace {

constexpr int compute_capability_major = 75,
              compute_capability_minor = 76;  // CUdevice_attribute, as in the driver's ABI

std::uint64_t used_bytes_of_current(const GpuDriver& driver) {
  std::size_t free = 0, total = 0;
  return driver.free_memory(&free, &total) == 0 ? total - free : 0;
}

/// Bytes of a device that all processes use; 0 if the driver does not say.
std::uint64_t used_bytes(const GpuDriver& driver, int device) {
  std::uint64_t used = 0;
  if (void* context = nullptr; driver.retain != nullptr && driver.retain(&context, device) == 0) {
    if (driver.push(context) == 0) {
      used = used_bytes_of_current(driver);
      (void)driver.pop(&context);
    }
    (void)driver.release(device);
  } else if (int before = 0; driver.get_current != nullptr && driver.get_current(&before) == 0) {
    if (driver.set_current(device) == 0) used = used_bytes_of_current(driver);
    (void)driver.set_current(before);
  }
  return used;
}

void ask_driver(int index, headrace_device_info_v1& info) {
  static const GpuDriver driver =
      torch_versions().found_accelerator == "rocm" ? GpuDriver::amd() : GpuDriver::nvidia();
  int device = 0;
  if (!driver.there() || driver.init(0) != 0 || driver.device(&device, index) != 0) return;
  driver.name(info.name, sizeof info.name, device);
  std::size_t bytes = 0;
  if (driver.memory(&bytes, device) == 0) info.memory_bytes = bytes;
  int major = 0, minor = 0;
  if (driver.attribute != nullptr && driver.attribute(&major, compute_capability_major, device) == 0 &&
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
  at::globalContext().lazyInitDevice(
      c10::DeviceType::CUDA);  // else its allocator does not know the device yet
  ask_driver(index, info);
  const auto stats =
      c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(index));
  info.held_bytes = static_cast<std::uint64_t>(stats.allocated_bytes[0].current);
  info.held_peak_bytes = static_cast<std::uint64_t>(stats.allocated_bytes[0].peak);
}

}  // namespace headrace::torch_runtime
