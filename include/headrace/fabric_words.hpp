// SPDX-License-Identifier: Apache-2.0
// Words of memory between a fabric and kernels: flags that kernels wait for, words that the host watches.
#pragma once

#include <headrace/result.hpp>

#include <cstdint>
#include <memory>
#include <optional>

namespace headrace {

namespace fabric {
class Core;
class HeldFlag;
class HeldWatcher;
}  // namespace fabric

/// Where the word of a flag lies.
struct FabricFlagPlace {
  /// A GPU: every GPU of the process sees the word, in pinned host memory. nullopt: plain host memory.
  std::optional<int> device = {};
  /// 8 bytes in the memory of this GPU, aligned to 8: the flag is there instead, and kernels that look at it
  /// do not go over PCIe. The caller's, in place until the last handle of the flag is gone. 0: none.
  std::uintptr_t gpu_memory = 0;
};

/// The full rounds of an expectation as 8 bytes that kernels and streams of GPUs wait for:
/// headrace/device/fabric.cuh, cuStreamWaitValue64 with CU_STREAM_WAIT_VALUE_GEQ. A handle, cheap to copy.
///
/// Who sees a number of rounds, in a load with acquire order at the scope of the system, or behind a stream
/// wait, can read the bytes of the posts of these rounds: the worker has seen that they lie there before it
/// stores the number with release order, or by a stream write, which has a fence of the system before it.
///
/// When the expectation is removed or the fabric closed, the word gets the bit `ended`, so that nothing waits
/// for good: stream waits go on, and those of fabric.cuh say so.
///   owns     the memory, until the last handle is gone. Let kernels and streams that use it end first
///   threads  any
class FabricFlag {
 public:
  static constexpr std::uint64_t ended = std::uint64_t{1} << 62;

  FabricFlag() = default;
  /// As the GPUs see it; without one, as this process does.
  [[nodiscard]] HEADRACE_API std::uintptr_t address() const;
  [[nodiscard]] HEADRACE_API std::optional<int> device() const;
  /// Whether it lies in memory of the GPU, where the host does not look.
  [[nodiscard]] HEADRACE_API bool in_gpu_memory() const;
  /// The word; of GPU memory, what was stored last.
  [[nodiscard]] HEADRACE_API std::uint64_t value() const;
  [[nodiscard]] explicit operator bool() const noexcept { return flag_ != nullptr; }

 private:
  friend class FabricExpectation;
  explicit FabricFlag(std::shared_ptr<const fabric::HeldFlag> flag) : flag_(std::move(flag)) {}
  std::shared_ptr<const fabric::HeldFlag> flag_;
};

/// 8 bytes, 0 at first, that kernels change (headrace/device/fabric.cuh), streams (cuStreamWriteValue64, in
/// graphs too) or threads, and that the fabric watches: Fabric::watch. A handle, cheap to copy; it is watched
/// without handles, until its function declines, `stop`, or the close of the fabric.
///   owns     the memory stays until then, and until the last handle is gone. Let kernels that change it end
///            first
///   threads  any
class FabricWatcher {
 public:
  FabricWatcher() = default;
  /// As the GPUs see it; without one, as this process does.
  [[nodiscard]] HEADRACE_API std::uintptr_t address() const;
  [[nodiscard]] HEADRACE_API std::uint64_t value() const;
  /// Changes it from the host: what the thread has written before is seen with it.
  HEADRACE_API void store(std::uint64_t value) const;
  /// No call of its function begins any more.
  HEADRACE_API void stop() const;
  [[nodiscard]] explicit operator bool() const noexcept { return watcher_ != nullptr; }

 private:
  friend class fabric::Core;
  explicit FabricWatcher(std::shared_ptr<const fabric::HeldWatcher> watcher) : watcher_(std::move(watcher)) {}
  std::shared_ptr<const fabric::HeldWatcher> watcher_;
};

}  // namespace headrace
