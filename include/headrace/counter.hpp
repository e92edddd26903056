// SPDX-License-Identifier: Apache-2.0
// Counters: how many posts with an immediate have arrived at this agent.
#pragma once

#include <headrace/request.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace headrace {

namespace engine {
class ArrivalCount;
class ArrivalCounters;
}  // namespace engine

/// A counter as 8 bytes of memory, for readers that poll: a thread, or a kernel on a GPU. A handle, cheap to
/// copy.
///
/// The word grows while the agent is open. A reader that sees a value (load it with acquire order; in a
/// kernel through a volatile pointer, then `__threadfence_system()`) sees the bytes of these posts too.
///   owns     the memory, until the last handle is gone. Release it after the kernels that read it have ended
///   threads  any
class CounterWord {
 public:
  CounterWord() = default;
  /// Of this process, or of the GPU. Aligned to 8 bytes.
  [[nodiscard]] std::uintptr_t address() const noexcept { return address_; }
  /// The GPU; nullopt: host memory.
  [[nodiscard]] std::optional<int> device() const noexcept { return device_; }

  [[nodiscard]] explicit operator bool() const noexcept { return memory_ != nullptr; }

 private:
  friend class Counter;
  CounterWord(std::shared_ptr<const void> memory, std::uintptr_t address, std::optional<int> device)
      : memory_(std::move(memory)), address_(address), device_(device) {}

  std::shared_ptr<const void> memory_;
  std::uintptr_t address_ = 0;
  std::optional<int> device_;
};

/// The number of posts with one immediate whose bytes this agent can read: those of peers, and its own to
/// itself. It only grows while the agent is open. Arrivals before the counter was opened are in it.
///
/// A handle, cheap to copy; all handles of one immediate show the same count.
///   threads  any
class Counter {
 public:
  Counter() = default;

  [[nodiscard]] HEADRACE_API Immediate immediate() const;
  /// The count now. What was written by these posts can be read.
  [[nodiscard]] HEADRACE_API std::uint64_t value() const;
  /// Waits until the count is at least that. Returns ok, timed_out, or canceled (the agent was closed).
  HEADRACE_API Status wait(std::uint64_t at_least, Timeout timeout = forever) const;
  /// Calls `reached` once, on the agent's callback thread, when the count is at least that. Never if the
  /// agent is closed first.
  HEADRACE_API void on_reached(std::uint64_t at_least, std::function<void()> reached) const;
  /// A new descriptor, the caller's to close. It becomes readable once the count is at least that, or the
  /// agent is closed. Do not read from it.
  ///   errors  invalid_argument (the agent is closed), exhausted (no descriptors)
  [[nodiscard]] HEADRACE_API Result<int> event_fd(std::uint64_t at_least) const;
  /// The count as a word in host memory, or in the memory of this GPU (its number in CUDA). The library
  /// writes a GPU's word after each arrival by a stream of its own, without waiting.
  ///   errors  not_supported (no GPU driver), invalid_argument (no such GPU, the agent is closed), exhausted
  [[nodiscard]] HEADRACE_API Result<CounterWord> word(std::optional<int> device = {}) const;

  [[nodiscard]] explicit operator bool() const noexcept { return count_ != nullptr; }

 private:
  friend class Agent;
  Counter(std::shared_ptr<engine::ArrivalCounters> all, std::shared_ptr<engine::ArrivalCount> count,
          Immediate immediate)
      : all_(std::move(all)), count_(std::move(count)), immediate_(immediate) {}

  std::shared_ptr<engine::ArrivalCounters> all_;  ///< keeps the engine
  std::shared_ptr<engine::ArrivalCount> count_;
  Immediate immediate_;
};

}  // namespace headrace
