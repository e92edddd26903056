// SPDX-License-Identifier: Apache-2.0
// How long a thread that waits looks before it sleeps.
//
// Looking pays when what it waits for comes within the time of a wake-up. It costs when it does not, and
// doubly when the peer needs this very core: two agents that took turns on one core, asleep, spent two thirds
// of each round trip in each other's looking (bench/notes/agents.md). So the length is learnt: after a few
// looks in vain most waits sleep at once, and one in some looks again, which brings the looking back when it
// pays.
#pragma once

#include "base/affinity.hpp"

#include <atomic>
#include <cstdint>

namespace headrace::engine {

class SpinLength {
 public:
  SpinLength() : full_ns_(budget()) {}
  explicit SpinLength(std::uint64_t full_ns) : full_ns_(full_ns) {}

  /// Of the wait that begins, in nanoseconds. Any thread: waits of several share what they learn.
  [[nodiscard]] std::uint64_t next() {
    if (in_vain_.load(std::memory_order_relaxed) < patience) return full_ns_;
    return waits_.fetch_add(1, std::memory_order_relaxed) % try_every == 0 ? full_ns_ : 0;
  }
  /// What was waited for came while the thread looked.
  void paid() {
    if (in_vain_.load(std::memory_order_relaxed) != 0) in_vain_.store(0, std::memory_order_relaxed);
  }
  /// It did not: the thread sleeps now.
  void in_vain() {
    if (in_vain_.load(std::memory_order_relaxed) < patience) in_vain_.fetch_add(1, std::memory_order_relaxed);
  }

  static constexpr std::uint32_t patience = 8;    ///< looks in vain before most waits sleep at once
  static constexpr std::uint32_t try_every = 32;  ///< of those waits, one looks

 private:
  static constexpr std::uint64_t many_cores_ns = 60'000;  // some wake-ups, and one page from GPU to GPU over
                                                          // tcp: sleeping sooner costs more than it saves
  static constexpr std::uint64_t few_cores_ns = 2'000;    // on two cores the spinner stands in its peer's way

  static std::uint64_t budget() { return usable_cores() > 2 ? many_cores_ns : few_cores_ns; }

  const std::uint64_t full_ns_;
  std::atomic<std::uint32_t> in_vain_{0};
  std::atomic<std::uint32_t> waits_{0};
};

}  // namespace headrace::engine
