// SPDX-License-Identifier: Apache-2.0
// Knowing that the process forked since an object was made: the child has our memory, but none of our
// threads.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace headrace {

/// Made with the object that it guards. In a forked child `forked()` is true.
///
/// The question is asked on every post, so it must cost a load and not a system call (getpid is one since
/// glibc 2.25), and pthread_atfork would need a mutable global. So the guard owns one page which the kernel
/// hands to a child as zeros (MADV_WIPEONFORK, Linux 4.14); where that is refused, it falls back to comparing
/// getpid().
class ForkGuard {
 public:
  ForkGuard() noexcept;
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  [[nodiscard]] bool forked() const noexcept {
    if (alive_ != nullptr) return alive_->load(std::memory_order_relaxed) == 0;
    return ::getpid() != made_in_;
  }

 private:
  std::atomic<std::uint32_t>* alive_ = nullptr;  // at the start of the wiped page
  pid_t made_in_;
};

}  // namespace headrace
