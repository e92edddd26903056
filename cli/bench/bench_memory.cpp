// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_memory.hpp"

#include "cli/bench/page_pattern.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"

#include <sys/mman.h>

#include <utility>

namespace headrace::cli {
namespace {

class HostMemory final : public BenchMemory {
 public:
  explicit HostMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  ~HostMemory() override { ::munmap(bytes_.data(), bytes_.size()); }

  [[nodiscard]] MemoryRange range() const override {
    MemoryRange range;
    range.address = bytes_.data();
    range.length_bytes = bytes_.size();
    return range;
  }
  [[nodiscard]] Result<void> fill(std::uint64_t seed) override {
    return fill_pattern(bytes_, seed), Result<void>();
  }
  [[nodiscard]] Result<std::span<const std::byte>> contents() override {
    return std::span<const std::byte>(bytes_);
  }

 private:
  std::span<std::byte> bytes_;
};

/// Filled and compared through a pinned host copy: a copy from or to other host memory is much slower.
class GpuMemory final : public BenchMemory {
 public:
  GpuMemory(gpu::DeviceMemory memory, gpu::Stream stream, gpu::PinnedMemory copy)
      : memory_(std::move(memory)), stream_(std::move(stream)), copy_(std::move(copy)) {}

  [[nodiscard]] MemoryRange range() const override {
    MemoryRange range;
    range.kind = MemoryKind::vram;
    range.device = stream_.device().ordinal();
    range.address = reinterpret_cast<void*>(memory_.address());
    range.length_bytes = memory_.bytes();
    return range;
  }
  [[nodiscard]] Result<void> fill(std::uint64_t seed) override {
    fill_pattern(copy_.bytes(), seed);
    return copy(memory_.address(), copy_.address());
  }
  [[nodiscard]] Result<std::span<const std::byte>> contents() override {
    HEADRACE_CLI_CHECK(copy(copy_.address(), memory_.address()));
    return std::span<const std::byte>(copy_.bytes());
  }

 private:
  Result<void> copy(cuda::Address to, cuda::Address from) {
    const gpu::ContextGuard current(stream_.device());
    const cuda::DriverTable& driver = stream_.device().driver();
    HEADRACE_CUDA_TRY(driver, driver.memcpy_async(to, from, memory_.bytes(), stream_.handle()),
                      "copy {} bytes between GPU {} and host", memory_.bytes(), stream_.device().ordinal());
    return stream_.wait_idle();
  }

  gpu::DeviceMemory memory_;
  gpu::Stream stream_;
  gpu::PinnedMemory copy_;
};

}  // namespace

Result<std::unique_ptr<BenchMemory>> host_memory(std::uint64_t bytes) {
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    return fail(Code::exhausted, "mapping {} bytes of memory: {}", bytes, system_text());
  // Huge pages: scattered pages then miss the TLB much less.
  ::madvise(mapped, bytes, MADV_HUGEPAGE);
  ::madvise(mapped, bytes, MADV_POPULATE_WRITE);
  return std::unique_ptr<BenchMemory>(
      std::make_unique<HostMemory>(std::span(static_cast<std::byte*>(mapped), bytes)));
}

Result<std::unique_ptr<BenchMemory>> gpu_memory(int ordinal, std::uint64_t bytes) {
  HEADRACE_CLI_TRY(driver, cuda::load_driver());
  HEADRACE_CLI_TRY(device, gpu::Device::open(driver, ordinal));
  HEADRACE_CLI_TRY(memory, gpu::DeviceMemory::allocate(device, bytes));
  HEADRACE_CLI_TRY(stream, gpu::Stream::make(device));
  HEADRACE_CLI_TRY(copy, gpu::PinnedMemory::allocate(device, bytes));
  return std::unique_ptr<BenchMemory>(
      std::make_unique<GpuMemory>(std::move(memory), std::move(stream), std::move(copy)));
}

}  // namespace headrace::cli
