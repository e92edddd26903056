// SPDX-License-Identifier: Apache-2.0
// How a thread waits for another rank: it looks often at first, then gives up its core, then sleeps in short
// steps. Between looks it checks whether it waits in vain.
#pragma once

#include "base/clock.hpp"

#include <headrace/result.hpp>

#include <algorithm>
#include <cstdint>
#include <thread>

namespace headrace::collectives {

class Waiter {
 public:
  /// `spins`: looks before the core is given up. With more ranks than cores the rank that is waited for may
  /// need this very core.
  explicit Waiter(std::uint32_t spins) : spins_(spins) {}

  /// Something has moved.
  void moved() { looks_ = 0; }
  /// After a look in vain. `check` runs once in some looks: it makes other progress and says whether to go
  /// on.
  template <class Check>
  Result<void> pause(const Check& check) {
    ++looks_;
    if (looks_ < spins_) {
      relax();
      return looks_ % spins_between_checks == 0 ? check() : Result<void>();
    }
    if (looks_ == spins_) yields_until_ns_ = now_ns() + yield_ns;
    if (auto go_on = check(); !go_on) return go_on;
    if (now_ns() < yields_until_ns_) {
      std::this_thread::yield();
      sleep_us_ = first_sleep_us;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(sleep_us_));
      sleep_us_ = std::min(sleep_us_ * 2, last_sleep_us);
    }
    return {};
  }

  static constexpr std::uint32_t many_spins = 2000, few_spins = 20;

 private:
  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  static constexpr std::uint32_t spins_between_checks = 256;
  static constexpr std::uint64_t yield_ns = 5'000'000;
  static constexpr std::uint32_t first_sleep_us = 50, last_sleep_us = 1000;

  const std::uint32_t spins_;
  std::uint32_t looks_ = 0;
  std::uint64_t yields_until_ns_ = 0;
  std::uint32_t sleep_us_ = first_sleep_us;
};

}  // namespace headrace::collectives
