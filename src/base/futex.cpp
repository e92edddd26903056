// SPDX-License-Identifier: Apache-2.0
#include "base/futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace headrace {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free,
              "the kernel reads the word without std::atomic");

int with_scope(int operation, FutexScope scope) {
  return scope == FutexScope::process ? operation | FUTEX_PRIVATE_FLAG : operation;
}

}  // namespace

FutexWait futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline deadline,
                     FutexScope scope) noexcept {
  timespec until{};
  until.tv_sec = static_cast<time_t>(deadline.point_ns() / 1'000'000'000);
  until.tv_nsec = static_cast<long>(deadline.point_ns() % 1'000'000'000);
  // The bitset form takes an absolute time on CLOCK_MONOTONIC, so that retries do not extend the deadline.
  const long rc = ::syscall(SYS_futex, &word, with_scope(FUTEX_WAIT_BITSET, scope), expected,
                            deadline.is_never() ? nullptr : &until, nullptr, FUTEX_BITSET_MATCH_ANY);
  if (rc == 0) return FutexWait::woken;
  if (errno == ETIMEDOUT) return FutexWait::timed_out;
  return errno == EAGAIN ? FutexWait::changed : FutexWait::woken;
}

std::uint32_t futex_wake(const std::atomic<std::uint32_t>& word, std::uint32_t count,
                         FutexScope scope) noexcept {
  const long woken = ::syscall(SYS_futex, &word, with_scope(FUTEX_WAKE, scope), count, nullptr, nullptr, 0);
  return woken > 0 ? static_cast<std::uint32_t>(woken) : 0;
}

}  // namespace headrace
