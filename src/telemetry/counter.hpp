// SPDX-License-Identifier: Apache-2.0
// A number that many threads increase on the data path.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace headrace {

/// Counts up and wraps at 2^64. Threads use different cache lines, so that two of them rarely contend for
/// one; an add is one relaxed read-modify-write.
class TelemetryCounter {
 public:
  TelemetryCounter() = default;
  TelemetryCounter(const TelemetryCounter&) = delete;
  TelemetryCounter& operator=(const TelemetryCounter&) = delete;

  void add(std::uint64_t amount = 1) noexcept {
    shards_[shard_of_this_thread()].value.fetch_add(amount, std::memory_order_relaxed);
  }

  /// The sum. It includes all adds of this thread; concurrent adds of other threads may be missing.
  [[nodiscard]] std::uint64_t value() const noexcept {
    std::uint64_t sum = 0;
    for (const Shard& shard : shards_) sum += shard.value.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  static constexpr unsigned shard_bits = 3;
  struct alignas(64) Shard {
    std::atomic<std::uint64_t> value = 0;
  };

  /// From the thread's own address, which costs a register read; numbers for threads would need a global.
  static std::size_t shard_of_this_thread() noexcept {
    // The address is page-aligned or nearly so; Fibonacci hashing moves its varying bits to the top.
    return (static_cast<std::uint64_t>(::pthread_self()) * 0x9e3779b97f4a7c15ULL) >> (64 - shard_bits);
  }

  std::array<Shard, 1U << shard_bits> shards_;
};

}  // namespace headrace
