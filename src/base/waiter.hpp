// SPDX-License-Identifier: Apache-2.0
// How a thread waits for another rank: it looks often at first, then gives up its core between looks, then
// sleeps until its bell rings. Between looks it checks whether it waits in vain.
#pragma once

#include "base/bell.hpp"
#include "base/clock.hpp"

#include <headrace/result.hpp>

#include <chrono>
#include <cstdint>
#include <thread>

namespace headrace {

class Waiter {
 public:
  /// `spins`: looks before the core is given up. With more ranks than cores the rank that is waited for may
  /// need this very core. Without a bell it sleeps in short steps.
  explicit Waiter(std::uint32_t spins, Bell bell = {}) : spins_(spins), bell_(bell) {}

  /// Something has moved.
  void moved() {
    looks_ = 0;
    armed_ = false;
  }
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
    if (armed_) {
      bell_.sleep(Deadline::after(longest_sleep));
      armed_ = false;
    } else if (!yield()) {
      sleep_soon();
    }
    return {};
  }

  static constexpr std::uint32_t many_spins = 2000, few_spins = 20;

 private:
  /// Lets others have the core, as long as nobody else wants it: a thread that lost it for a while waits
  /// until those others have had their share, though what it waits for has come. False: time to sleep.
  bool yield() {
    const std::uint64_t before = now_ns();
    if (before >= yields_until_ns_ || before < shared_until_ns_) return false;
    std::this_thread::yield();
    const std::uint64_t after = now_ns();
    if (after - before > lost_core_ns) shared_until_ns_ = after + sharing_ns;
    return true;
  }
  void sleep_soon() {
    if (!bell_.exists()) return std::this_thread::sleep_for(sleep_without_bell);
    bell_.arm();
    armed_ = true;  // one look more, then it sleeps
  }
  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  static constexpr std::uint32_t spins_between_checks = 256;
  static constexpr auto sleep_without_bell = std::chrono::microseconds(200);
  static constexpr std::uint64_t yield_ns = 5'000'000;
  // Longer than a rank keeps a core that several share, shorter than a busy process does.
  static constexpr std::uint64_t lost_core_ns = 1'000'000;
  static constexpr std::uint64_t sharing_ns = 50'000'000;
  static constexpr auto longest_sleep =
      std::chrono::milliseconds(1);  // checks see a deadline that late at most

  const std::uint32_t spins_;
  const Bell bell_;
  std::uint32_t looks_ = 0;
  bool armed_ = false;
  std::uint64_t yields_until_ns_ = 0;
  std::uint64_t shared_until_ns_ = 0;  // until then the core is believed to be wanted by others
};

}  // namespace headrace
