// SPDX-License-Identifier: Apache-2.0
// Sleeping on a 32-bit word until another thread changes it, or another process that maps the same page.
#pragma once

#include "base/clock.hpp"

#include <atomic>
#include <cstdint>

namespace headrace {

/// The threads that may wake the sleeper. Waiter and waker must use the same scope, or the wake is lost.
enum class FutexScope {
  process,  ///< threads of this process: cheaper, the kernel hashes the address alone
  shared,   ///< any process that maps the page: for words in memory shared by memfd or file
};

enum class FutexWait {
  woken,      ///< by a waker or a signal: read the word again
  changed,    ///< the word did not hold `expected`: the call did not wait
  timed_out,  ///< the deadline passed
};

/// Sleeps while `word` holds `expected`. Spurious returns happen: call it in a loop over the real condition.
[[nodiscard]] FutexWait futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                                   Deadline deadline, FutexScope scope = FutexScope::process) noexcept;

/// Wakes at most `count` sleepers and returns how many. Store the new value before, with release order.
std::uint32_t futex_wake(const std::atomic<std::uint32_t>& word, std::uint32_t count,
                         FutexScope scope = FutexScope::process) noexcept;

inline constexpr std::uint32_t futex_all = 0x7fffffff;  ///< as `count`: all sleepers

}  // namespace headrace
