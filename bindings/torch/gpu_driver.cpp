// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/gpu_driver.hpp"

#include <dlfcn.h>

namespace headrace::torch_runtime {
namespace {

template <class Function>
void bind(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, symbol));
}

}  // namespace

GpuDriver GpuDriver::nvidia() {
  GpuDriver driver;
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return driver;
  bind(library, "cuInit", driver.init);
  bind(library, "cuDeviceGet", driver.device);
  bind(library, "cuDeviceGetName", driver.name);
  bind(library, "cuDeviceTotalMem_v2", driver.memory);
  bind(library, "cuDeviceGetAttribute", driver.attribute);
  bind(library, "cuDevicePrimaryCtxRetain", driver.retain);
  bind(library, "cuDevicePrimaryCtxRelease_v2", driver.release);
  bind(library, "cuCtxPushCurrent_v2", driver.push);
  bind(library, "cuCtxPopCurrent_v2", driver.pop);
  bind(library, "cuMemGetInfo_v2", driver.free_memory);
  return driver;
}

GpuDriver GpuDriver::amd() {
  GpuDriver driver;
  // Under any file name it is loaded already: torch depends on it, and this library on torch.
  bind(RTLD_DEFAULT, "hipInit", driver.init);
  bind(RTLD_DEFAULT, "hipDeviceGet", driver.device);
  bind(RTLD_DEFAULT, "hipDeviceGetName", driver.name);
  bind(RTLD_DEFAULT, "hipDeviceTotalMem", driver.memory);
  bind(RTLD_DEFAULT, "hipGetDevice", driver.get_current);
  bind(RTLD_DEFAULT, "hipSetDevice", driver.set_current);
  bind(RTLD_DEFAULT, "hipMemGetInfo", driver.free_memory);
  return driver;
}

}  // namespace headrace::torch_runtime
