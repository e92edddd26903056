// SPDX-License-Identifier: Apache-2.0
// How a caller ends a wait of its own: a hook that is asked now and then.
#pragma once

#include "base/clock.hpp"

#include <headrace/result.hpp>

#include <chrono>
#include <cstdint>
#include <functional>

namespace headrace {

/// One wait of one thread. The hook must outlive it; without one it is never asked.
class Interrupt {
 public:
  Interrupt() = default;
  explicit Interrupt(const std::function<bool()>& hook) : hook_(hook ? &hook : nullptr) {}

  /// Whether the caller wants the wait to end. Asks the hook once in an interval.
  [[nodiscard]] bool asked() {
    if (hook_ == nullptr) return false;
    const std::uint64_t now = now_ns();
    if (next_ns_ == 0) next_ns_ = now + interval_ns;
    if (now < next_ns_) return false;
    next_ns_ = now + interval_ns;
    return (*hook_)();
  }
  /// When a thread that sleeps wakes up to ask.
  [[nodiscard]] Deadline next_look() const {
    return hook_ == nullptr ? Deadline::never() : Deadline::after(interval);
  }
  [[nodiscard]] static Error error() { return {Code::canceled, "its caller interrupted it"}; }

  static constexpr auto interval = std::chrono::milliseconds(100);

 private:
  static constexpr std::uint64_t interval_ns = std::chrono::nanoseconds(interval).count();

  const std::function<bool()>* hook_ = nullptr;
  std::uint64_t next_ns_ = 0;
};

}  // namespace headrace
