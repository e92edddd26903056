// SPDX-License-Identifier: Apache-2.0
// Tells whether the process has forked since an object was made: the child has a copy of the memory, but none
// of the threads.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace headrace {

/// Made together with the object that it guards. In a forked child `forked()` is true.
///
/// Every post asks, so the answer must cost a load and not a system call (getpid is one since glibc 2.25).
/// pthread_atfork would need a mutable global. So the guard owns one page that the kernel fills with zeros in
/// a child (MADV_WIPEONFORK, Linux 4.14). If the kernel refuses that, the guard compares getpid().
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
