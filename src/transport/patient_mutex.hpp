// SPDX-License-Identifier: Apache-2.0
// A lock that is held for microseconds by threads of which each has a core: a thread that finds it taken
// spins for a while before it sleeps. A wake-up takes longer than any owner keeps the lock, and until it
// comes nobody works: threads that all come at once when a request begins stood in line for up to a
// millisecond.
#pragma once

#include "base/clock.hpp"

#include <cstdint>
#include <mutex>

namespace headrace::transport {

/// With std::scoped_lock, std::unique_lock, std::condition_variable_any.
class PatientMutex {
 public:
  /// `looks`: false where threads share cores, and looking keeps the owner from going on.
  explicit PatientMutex(bool looks) : looks_(looks) {}

  void lock() {
    if (mutex_.try_lock() || (looks_ && taken_soon())) return;
    mutex_.lock();
  }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr std::uint64_t patience_ns = 50'000;  // about what a wake-up takes

  bool taken_soon() {
    const std::uint64_t until = now_ns() + patience_ns;
    do {
      for (int i = 0; i < 16; ++i) rest();
      if (mutex_.try_lock()) return true;
    } while (now_ns() < until);
    return false;
  }
  static void rest() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  const bool looks_;
  std::mutex mutex_;
};

}  // namespace headrace::transport
