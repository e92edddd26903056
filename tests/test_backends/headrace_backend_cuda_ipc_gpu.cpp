// SPDX-License-Identifier: Apache-2.0
// cuda_ipc over fake GPUs of its process, as a plugin that agents open by name. The program that loads it
// takes memory of GPU 0, or uses the driver (support/plugin_gpu.hpp).
#include "backends/cuda_ipc/backend.hpp"
#include "support/fake_cuda.hpp"
#include "support/fake_kernels.hpp"
#include "support/plugin_gpu.hpp"
#include "test_backends/on_gpus.hpp"

#include <functional>
#include <utility>

namespace headrace::test {
namespace {

/// Never destroyed: threads may still access its memory when the process ends.
struct Gpu {
  Gpu() {
    cuda::add_reference_kernels(driver);
    table = driver.load().value();
  }
  static Gpu& of_this_process() {
    static auto* const gpu = new Gpu;
    return *gpu;
  }

  cuda::FakeCuda driver{std::vector<cuda::FakeGpu>(plugin_gpus, {.memory_bytes = std::size_t{1} << 30})};
  cuda::DriverTable table;
};

void* take(std::size_t bytes) {
  const cuda::DriverTable& table = Gpu::of_this_process().table;
  cuda::Context context = nullptr;
  cuda::Address address = 0;
  if (table.device_primary_ctx_retain(&context, 0) != cuda::Outcome::success) return nullptr;
  if (table.ctx_push_current(context) == cuda::Outcome::success) {
    (void)table.mem_alloc(&address, bytes);
    (void)table.ctx_pop_current(&context);
  }
  (void)table.device_primary_ctx_release(0);
  return reinterpret_cast<void*>(address);
}

void reach(int from, int to, bool can) {
  cuda::FakeCuda& driver = Gpu::of_this_process().driver;
  can ? driver.allow_peer_access(from, to) : driver.forbid_peer_access(from, to);
}

void queue(cuda::Stream stream, std::function<bool()> work) {
  Gpu::of_this_process().driver.queue(stream, std::move(work));
}

void give_back(void* memory) {
  (void)Gpu::of_this_process().table.mem_free(reinterpret_cast<cuda::Address>(memory));
}

/// The name differs from that of the built cuda_ipc, in whose place no other plugin is loaded.
struct CudaIpcOnGpu : OnGpus<cuda_ipc::CudaIpcBackend> {
  static constexpr const char* name = gpu_backend;
};

}  // namespace
}  // namespace headrace::test

extern "C" __attribute__((visibility("default"))) const headrace_backend_v1* headrace_backend_v1_table() {
  using namespace headrace;  // NOLINT: one function
  // Agents of several threads may load it at once.
  static const headrace_backend_v1* const table = [] {
    test::CudaIpcOnGpu::use(test::Gpu::of_this_process().table, cuda::fake_kernels_table());
    return plugin::table<test::CudaIpcOnGpu>();
  }();
  return table;
}

extern "C" __attribute__((visibility("default"))) const headrace::test::PluginGpu* headrace_test_gpu() {
  using namespace headrace::test;  // NOLINT: one function
  static const PluginGpu gpu{take,
                             give_back,
                             [] { Gpu::of_this_process().driver.hold(); },
                             [] { Gpu::of_this_process().driver.release(); },
                             &Gpu::of_this_process().table,
                             &headrace::cuda::fake_kernels_table(),
                             reach,
                             queue};
  return &gpu;
}
