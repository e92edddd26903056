// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/lanes/patience.hpp"

#include "base/clock.hpp"

#include <sched.h>

#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace::shm {
namespace {

void pause_core() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace

void Patience::wait() noexcept {
  if (++rounds_ <= spins) {
    pause_core();
    return;
  }
  const std::uint64_t now = now_ns();
  if (since_ns_ == 0) since_ns_ = now;
  if (now - since_ns_ < yield_ns) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::nanoseconds(sleep_ns));
  }
}

std::uint64_t Patience::waited_ns() const noexcept { return since_ns_ == 0 ? 0 : now_ns() - since_ns_; }

}  // namespace headrace::shm
