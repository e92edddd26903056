// SPDX-License-Identifier: Apache-2.0
// The host's side of a queue of commands: what kernels post, the worker carries.
#pragma once

#include <headrace/device/fabric_v1.h>
#include <headrace/fabric_commands.hpp>

#include "base/clock.hpp"
#include "base/fork_guard.hpp"
#include "fabric/callbacks.hpp"
#include "fabric/host_block.hpp"
#include "fabric/part.hpp"
#include "fabric/polled_memory.hpp"
#include "gpu/device_memory.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace headrace::fabric {

class Worker;

/// What host and kernels share: what the host tells, the status, the ring; and the handle, where kernels find
/// these.
class QueueMemory {
 public:
  ///   errors  exhausted, backend_failed
  static Result<std::unique_ptr<QueueMemory>> make(const std::shared_ptr<const gpu::Device>& device,
                                                   std::uint32_t capacity, std::int64_t timeout_ns);

  [[nodiscard]] std::uint64_t handle() const;
  [[nodiscard]] headrace_fabric_told_v1& told() const { return at<headrace_fabric_told_v1>(0); }
  [[nodiscard]] headrace_fabric_status_v1& status() const { return at<headrace_fabric_status_v1>(status_at); }
  [[nodiscard]] headrace_fabric_command_v1& command(std::size_t slot) const {
    return at<headrace_fabric_command_v1>(commands_at + slot * sizeof(headrace_fabric_command_v1));
  }

 private:
  static constexpr std::size_t status_at = 64, handle_at = 128, commands_at = 256;
  static_assert(sizeof(headrace_fabric_queue_v1) <= commands_at - handle_at);
  explicit QueueMemory(HostBlock host) : host_(std::move(host)) {}
  template <class T>
  [[nodiscard]] T& at(std::size_t byte) const {
    return *reinterpret_cast<T*>(host_.bytes() + byte);
  }
  Result<void> copy_handle_to(const std::shared_ptr<const gpu::Device>& device);

  HostBlock host_;
  gpu::DeviceMemory on_gpu_;  // the handle; empty: it is in `host_`
};

/// Its worker's but for what is said to be for any thread.
class CommandQueue final : public PolledMemory, public std::enable_shared_from_this<CommandQueue> {
 public:
  struct Write {
    Part::Setup part;  ///< of all its units
    std::uint64_t unit_bytes = 0;
    std::uint32_t units = 0;
    bool counts_units = false;
    Timeout timeout;
  };
  struct Setup {
    std::vector<Write> writes;
    std::optional<int> device;
    std::uint32_t capacity = 0;
    std::shared_ptr<Worker> worker;  ///< which drops the queue when it ends
    std::shared_ptr<Callbacks> callbacks;
    std::shared_ptr<const Clock> clock;
    std::shared_ptr<const ForkGuard> fork;
  };
  CommandQueue(Setup given, std::unique_ptr<QueueMemory> memory)
      : setup(std::move(given)), memory_(std::move(memory)), over_(setup.capacity) {}
  ~CommandQueue() override;

  bool poll(Carrier& carrier) override;
  void begin_close() override;
  [[nodiscard]] bool is_over() const override;

  // From any thread.
  /// What is in the ring is carried; kernels that wait leave.
  void close();
  [[nodiscard]] std::uint64_t address() const { return memory_->handle(); }
  [[nodiscard]] std::uint64_t ended() const { return acquire(memory_->told().ended); }
  [[nodiscard]] std::uint64_t failed() const { return acquire(memory_->told().failed); }
  [[nodiscard]] std::optional<FabricQueueStatus> status() const;

  const Setup setup;

 private:
  struct Command {
    std::uint64_t number;  // from 1 on
    std::uint32_t write, first, count;
  };
  static std::uint64_t acquire(std::uint64_t& word) {
    return std::atomic_ref(word).load(std::memory_order_acquire);
  }
  [[nodiscard]] std::optional<Command> next() const;
  [[nodiscard]] Result<void> check(const Command& command) const;
  void carry(const Command& command, Carrier& carrier);
  void end(std::uint64_t number, std::optional<Error> failed);

  std::unique_ptr<QueueMemory> memory_;
  std::atomic<bool> closed_ = false;
  bool stopped_ = false;  // the worker closes
  std::uint64_t taken_ = 0, ended_ = 0, failed_ = 0;
  std::vector<bool> over_;  // by slot of the ring: it has ended, and one before it has not
};

/// What all handles of a queue share.
class HeldQueue {
 public:
  explicit HeldQueue(std::shared_ptr<CommandQueue> queue) : queue_(std::move(queue)) {}
  ~HeldQueue();
  HeldQueue(const HeldQueue&) = delete;
  HeldQueue& operator=(const HeldQueue&) = delete;
  [[nodiscard]] CommandQueue& queue() const { return *queue_; }

 private:
  std::shared_ptr<CommandQueue> queue_;
};

}  // namespace headrace::fabric
