// SPDX-License-Identifier: Apache-2.0
// The backends cuda_ipc and tcp over GPUs that are fake, for programs that link it, and memory of these GPUs
// for tests.
#pragma once

#include "support/fake_cuda.hpp"
#include "support/plugin_memory.hpp"

#include <headrace/plugin/backend_v1.h>

namespace headrace::test {

/// The GPUs of this process: two, made at the first question and there until its end.
class FakeGpus final : public MemorySource {
 public:
  [[nodiscard]] static FakeGpus& of_this_process();

  /// Makes `load_plugin("cuda_ipc")` and `load_plugin("tcp_gpu")` answer with cuda_ipc and tcp over them.
  static void link_backends();

  [[nodiscard]] cuda::FakeCuda& driver() { return driver_; }
  /// Memories come from this GPU from now on, from 0 at first.
  void choose(int device) { device_ = device; }

  /// By cuMemAlloc: peers reach it by IPC handle.
  [[nodiscard]] Taken take_plain(std::size_t length_bytes) override;
  /// By the virtual memory API, in several pieces: peers reach it by descriptors.
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
