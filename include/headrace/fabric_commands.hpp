// SPDX-License-Identifier: Apache-2.0
// Queues through which kernels post writes of a fabric.
#pragma once

#include <headrace/fabric_memory.hpp>
#include <headrace/fabric_work.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace headrace {

namespace fabric {
class Core;
class HeldQueue;
}  // namespace fabric

/// A write of a queue's list: `units` units of `unit_bytes` bytes, one behind the other on both sides. A
/// command moves all of them or a part.
struct FabricQueueWrite {
  FabricMemory from;
  std::uint64_t from_offset = 0;
  FabricDescriptor to;
  std::uint64_t to_offset = 0;
  std::uint64_t unit_bytes = 0;  ///< of a row of tokens, or of all
  std::uint32_t units = 1;
  /// Of each command. `count_by` page: once for each unit. `timeout`: from the moment on that the worker
  /// takes it.
  FabricPost post = {};
};

struct FabricQueueOptions {
  std::optional<int> device = {};  ///< whose kernels post; nullopt: threads
  /// Commands that have not ended. Then kernels wait: 1 to 4096.
  std::uint32_t capacity = 1024;
  /// Of a kernel that waits for a slot or an end; nullopt: none.
  Timeout timeout = std::chrono::seconds(10);
};

/// What the first kernel that was late has left.
struct FabricQueueStatus {
  bool full = false;          ///< it had no slot for a command; false: it waited for the end of one
  std::uint64_t command = 0;  ///< its number
  std::uint64_t ended = 0;    ///< commands that had ended
};

/// Commands of kernels: headrace/device/fabric.cuh. The worker of the writes' group carries them in the order
/// of their numbers. A command that names no write of the list, or units outside of it, and one that fails,
/// are told to Fabric::on_error; the others go on. A handle, cheap to copy.
///   owns     the memory, until the last handle is gone. Commands that were posted are carried also then.
///            Let kernels that use it end first
///   threads  any
class FabricCommandQueue {
 public:
  FabricCommandQueue() = default;
  /// A headrace_fabric_queue_v1 for kernels of the GPU, in its memory; without a GPU for threads.
  [[nodiscard]] HEADRACE_API std::uintptr_t address() const;
  [[nodiscard]] HEADRACE_API std::optional<int> device() const;
  [[nodiscard]] HEADRACE_API std::uint32_t capacity() const;
  /// Commands that have ended: the first ones. Nothing reads their memory any more.
  [[nodiscard]] HEADRACE_API std::uint64_t ended() const;
  /// Of them, those that have failed.
  [[nodiscard]] HEADRACE_API std::uint64_t failed() const;
  /// nullopt: no kernel was late.
  [[nodiscard]] HEADRACE_API std::optional<FabricQueueStatus> status() const;
  /// Commands that were posted are carried; kernels that wait for a slot, or for an end, leave. So does the
  /// close of the fabric, which cancels them.
  HEADRACE_API void close() const;
  [[nodiscard]] explicit operator bool() const noexcept { return queue_ != nullptr; }

 private:
  friend class fabric::Core;
  explicit FabricCommandQueue(std::shared_ptr<const fabric::HeldQueue> queue) : queue_(std::move(queue)) {}
  std::shared_ptr<const fabric::HeldQueue> queue_;
};

}  // namespace headrace
