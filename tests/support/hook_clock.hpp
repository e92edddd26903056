// SPDX-License-Identifier: Apache-2.0
// A clock that stands still, and calls a function of the test at one reading on one thread: code that reads
// the clock stops there while other threads go on.
#pragma once

#include "base/clock.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

namespace headrace::test {

class HookClock final : public Clock {
 public:
  [[nodiscard]] std::uint64_t now_ns() const noexcept override {
    if (thread_.load() == std::this_thread::get_id() && --left_ == 0) {
      thread_.store({});
      hook_();
    }
    return clock_.now_ns();
  }
  /// At reading `number` on this thread, from 1.
  void at_reading(int number, std::function<void()> hook) {
    hook_ = std::move(hook);
    left_ = number;
    thread_.store(std::this_thread::get_id());
  }
  void advance(std::chrono::nanoseconds by) noexcept { clock_.advance(by); }

 private:
  FakeClock clock_;
  std::function<void()> hook_;
  mutable int left_ = 0;  // used by that thread alone
  mutable std::atomic<std::thread::id> thread_{};
};

}  // namespace headrace::test
