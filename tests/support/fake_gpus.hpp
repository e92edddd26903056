// SPDX-License-Identifier: Apache-2.0
// Fake GPUs of a test program, the backends cuda_ipc, tcp and local over them, and their memory.
#pragma once

#include "support/fake_cuda.hpp"
#include "support/plugin_memory.hpp"

#include <headrace/plugin/backend_v1.h>

namespace headrace::test {

/// The two GPUs of this process, made at the first use and never destroyed.
class FakeGpus final : public MemorySource {
 public:
  [[nodiscard]] static FakeGpus& of_this_process();

  /// From now on `load_plugin` returns cuda_ipc, "tcp_gpu" and "local_gpu" over the fake GPUs, `local` over
  /// this machine's, and "tcp_faulty" and "tcp_gpu_faulty", whose option `faults` is a FaultPlan. tcp is
  /// loaded from tests/test_backends; the others, into which tests reach, are linked in.
  static void offer_backends();

  [[nodiscard]] cuda::FakeCuda& driver() { return driver_; }
  /// The GPU of all memory that is taken from now on; 0 at first.
  void choose(int device) { device_ = device; }

  /// Memory of cuMemAlloc: peers access it by IPC handle.
  [[nodiscard]] Taken take_plain(std::size_t length_bytes) override;
  /// Memory of the virtual memory API, in several physical allocations: peers access it by descriptors.
  [[nodiscard]] Taken take_shared(std::size_t length_bytes) override;
  [[nodiscard]] headrace_memory_kind_v1 region_kind() const override { return HEADRACE_VRAM; }
  [[nodiscard]] int device() const override { return device_; }

 private:
  FakeGpus();

  cuda::FakeCuda driver_;
  cuda::DriverTable table_;
  int device_ = 0;
};

}  // namespace headrace::test
