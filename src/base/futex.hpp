// SPDX-License-Identifier: Apache-2.0
// Sleeping on a 32-bit word until another thread, or another process that maps the same page, changes it.
#pragma once

#include "base/clock.hpp"

#include <atomic>
#include <cstdint>

namespace headrace {

/// Who may wake the sleeper. Waiter and waker must say the same, or the wake is lost.
enum class FutexScope {
  process,  ///< threads of this process: cheaper, the kernel hashes the address alone
  shared,   ///< any process that maps the page: for words in memory shared by memfd or file
};

enum class FutexWait {
  woken,      ///< somebody woke us, or a signal did: look at the word again
  changed,    ///< the word was not `expected` any more: nothing was waited for
  timed_out,  ///< the deadline passed
};

/// Sleeps while `word` holds `expected`. Spurious returns happen: call it in a loop over the real condition.
[[nodiscard]] FutexWait futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                                   Deadline deadline, FutexScope scope = FutexScope::process) noexcept;

/// Wakes at most `count` sleepers and returns how many there were. Store the new value first, with release
/// order.
std::uint32_t futex_wake(const std::atomic<std::uint32_t>& word, std::uint32_t count,
                         FutexScope scope = FutexScope::process) noexcept;

inline constexpr std::uint32_t futex_all = 0x7fffffff;  ///< as `count`: everybody

}  // namespace headrace
