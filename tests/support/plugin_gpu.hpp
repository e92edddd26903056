// SPDX-License-Identifier: Apache-2.0
// The fake GPUs of tests/test_backends/headrace_backend_cuda_ipc_gpu.cpp, a plugin that agents open by name:
// memory, driver and kernels, for the program that loads the plugin.
#pragma once

#include "vendor/cuda/driver.hpp"

#include <headrace/plugin/kernels_v1.h>

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>

namespace headrace::test {

/// What the plugin exports as `headrace_test_gpu`.
struct PluginGpu {
  void* (*take)(std::size_t bytes);  ///< memory of GPU 0, which the CPU can access; null: there is none
  void (*give_back)(void* memory);
  void (*hold)();  ///< work of streams stays queued until `release`
  void (*release)();
  const cuda::DriverTable* driver;  ///< of plugin_gpus GPUs, whose memory the CPU can access
  const headrace_kernels_v1* kernels;
  void (*reach)(int from, int to,
                bool can);  ///< whether a GPU can access another one's memory; at first it can
  /// Work of the test on a stream: it is called again and again until it returns true.
  void (*queue)(cuda::Stream stream, std::function<bool()> work);
};
inline constexpr int plugin_gpus = 3;
using PluginGpuFunction = const PluginGpu* (*)();

/// The backend cuda_ipc over the fake GPU, and the folder of its plugin for option `plugin_path`.
inline constexpr const char* gpu_backend = "cuda_ipc_gpu";
inline constexpr const char* gpu_plugin_folder = HEADRACE_TEST_BIN_DIR "/test_backends";

/// The GPU of this process.
inline const PluginGpu& plugin_gpu() {
  static const PluginGpu& gpu = []() -> const PluginGpu& {
    const std::string file = std::string(gpu_plugin_folder) + "/headrace_backend_" + gpu_backend + ".so";
    void* const object = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void* const function = object != nullptr ? ::dlsym(object, "headrace_test_gpu") : nullptr;
    if (function == nullptr) {
      std::fprintf(stderr, "load %s: %s\n", file.c_str(), ::dlerror());
      std::abort();
    }
    return *reinterpret_cast<PluginGpuFunction>(function)();
  }();
  return gpu;
}

/// Memory of the GPU while this object lives.
class GpuBytes {
 public:
  explicit GpuBytes(std::size_t bytes) : bytes_(static_cast<std::byte*>(plugin_gpu().take(bytes)), bytes) {
    if (bytes_.data() == nullptr) std::abort();
  }
  ~GpuBytes() { plugin_gpu().give_back(bytes_.data()); }
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace headrace::test
