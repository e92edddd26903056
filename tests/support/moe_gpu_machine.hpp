// SPDX-License-Identifier: Apache-2.0
// Ranks as streams of one GPU, real or fake, for tests/support/moe_steps.hpp.
#pragma once

#include "gpu/device_memory.hpp"
#include "gpu/kernel_family.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"
#include "support/moe_steps.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headrace::moe_steps {

template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}
inline void must(const Result<void>& result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
}

class GpuMachine : public Machine {
 public:
  ///   device_bytes, shared_bytes  for what kernels alone see, and for what the host sees
  GpuMachine(std::shared_ptr<const gpu::Device> device, std::shared_ptr<const gpu::Kernels> kernels,
             int ranks, std::size_t device_bytes, std::size_t shared_bytes)
      : device_(std::move(device)),
        family_(must(gpu::KernelFamily<headrace_moe_v1>::of(std::move(kernels), HEADRACE_MOE_FAMILY,
                                                            HEADRACE_MOE_FAMILY_VERSION))),
        device_memory_(must(gpu::DeviceMemory::allocate(device_, device_bytes))),
        shared_memory_(must(gpu::PinnedMemory::allocate(device_, shared_bytes))) {
    for (int rank = 0; rank < ranks; ++rank) streams_.push_back(must(gpu::Stream::make(device_)));
    zero_device_memory(device_bytes);
  }

  /// Gives all memory back, as zeros.
  void clear() {
    zero_device_memory(device_used_);
    std::memset(shared_memory_.bytes().data(), 0, shared_used_);
    device_used_ = shared_used_ = 0;
  }

  std::byte* memory(std::size_t bytes, bool is_read) override {
    const cuda::Address base = is_read ? shared_memory_.address() : device_memory_.address();
    const std::size_t all = is_read ? shared_memory_.bytes().size() : device_memory_.bytes();
    std::size_t& used = is_read ? shared_used_ : device_used_;
    const std::size_t first = (base + used + 127) / 128 * 128 - base;
    if (first + bytes > all)
      throw std::runtime_error(fmt::format("the machine has {} bytes of {} memory, {} are needed", all,
                                           is_read ? "shared" : "device", first + bytes));
    used = first + bytes;
    return reinterpret_cast<std::byte*>(base + first);
  }
  const headrace_moe_v1& table() override { return family_.table(); }
  void dispatch(int rank, const headrace_moe_dispatch_v1& args) override {
    const gpu::ContextGuard guard(*device_);
    must_be(family_.launch<&headrace_moe_v1::dispatch>(args, stream(rank)), "dispatch");
  }
  void combine(int rank, const headrace_moe_combine_v1& args) override {
    const gpu::ContextGuard guard(*device_);
    must_be(family_.launch<&headrace_moe_v1::combine>(args, stream(rank)), "combine");
  }
  void combine_memory(int rank, const headrace_moe_combine_memory_v1& args) override {
    const gpu::ContextGuard guard(*device_);
    must_be(family_.launch<&headrace_moe_v1::combine_memory>(args, stream(rank)), "combine_memory");
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    const gpu::ContextGuard guard(*device_);
    if (bytes != 0)
      must_be(device_->driver().memcpy_async(reinterpret_cast<cuda::Address>(to),
                                             reinterpret_cast<cuda::Address>(from), bytes, stream(0)),
              "cuMemcpyAsync");
    GpuMachine::wait(0);
  }
  void wait(int rank) override { must(streams_[static_cast<std::size_t>(rank)].wait_idle()); }

  [[nodiscard]] cuda::Stream stream(int rank) const {
    return streams_[static_cast<std::size_t>(rank)].handle();
  }
  [[nodiscard]] const gpu::Device& device() const { return *device_; }
  [[nodiscard]] std::uint32_t most_blocks(int sharing) const {
    return family_.table().most_blocks(family_.kernels().set(), static_cast<std::uint32_t>(sharing));
  }
  void must_be(cuda::Outcome outcome, const std::string& what) const {
    if (outcome != cuda::Outcome::success)
      throw std::runtime_error(what + ": " + cuda::outcome_text(device_->driver(), outcome));
  }

 private:
  void zero_device_memory(std::size_t bytes) {
    if (bytes == 0) return;
    const gpu::ContextGuard guard(*device_);
    must_be(device_->driver().memset_d8_async(device_memory_.address(), 0, bytes, stream(0)),
            "cuMemsetD8Async");
    wait(0);
  }

  std::shared_ptr<const gpu::Device> device_;
  gpu::KernelFamily<headrace_moe_v1> family_;
  gpu::DeviceMemory device_memory_;
  gpu::PinnedMemory shared_memory_;
  std::size_t device_used_ = 0, shared_used_ = 0;
  std::vector<gpu::Stream> streams_;
};

/// What a stream records, to be replayed.
class Replay {
 public:
  template <class Record>
  Replay(const GpuMachine& machine, int rank, const Record& record) : machine_(machine) {
    const gpu::ContextGuard guard(machine.device());
    const cuda::DriverTable& driver = machine.device().driver();
    machine.must_be(driver.stream_begin_capture(machine.stream(rank), cuda::CaptureMode::relaxed),
                    "cuStreamBeginCapture");
    record();
    cuda::Graph graph = nullptr;
    machine.must_be(driver.stream_end_capture(machine.stream(rank), &graph), "cuStreamEndCapture");
    machine.must_be(driver.graph_instantiate(&exec_, graph, 0), "cuGraphInstantiate");
    machine.must_be(driver.graph_destroy(graph), "cuGraphDestroy");
  }
  Replay(Replay&& other) noexcept : machine_(other.machine_), exec_(std::exchange(other.exec_, nullptr)) {}
  Replay& operator=(Replay&&) = delete;
  ~Replay() {
    if (exec_ != nullptr) (void)machine_.device().driver().graph_exec_destroy(exec_);
  }
  void launch(int rank) const {
    const gpu::ContextGuard guard(machine_.device());
    machine_.must_be(machine_.device().driver().graph_launch(exec_, machine_.stream(rank)), "cuGraphLaunch");
  }

 private:
  const GpuMachine& machine_;
  cuda::GraphExec exec_ = nullptr;
};

}  // namespace headrace::moe_steps
