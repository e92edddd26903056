// SPDX-License-Identifier: Apache-2.0
// A doorbell that epoll can wait for: any thread rings, the owner drains. Rings between two drains count as
// one.
#pragma once

#include "base/unique_fd.hpp"

#include <sys/eventfd.h>

#include <cstdint>

namespace headrace {

class EventFd {
 public:
  /// A non-blocking, close-on-exec eventfd that starts silent.
  [[nodiscard]] static Result<EventFd> create() {
    UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!fd) return os_error(errno, "create an eventfd");
    return EventFd(std::move(fd));
  }
  /// Takes over an eventfd that came from elsewhere, for example through a Unix socket.
  explicit EventFd(UniqueFd fd) noexcept : fd_(std::move(fd)) {}

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  /// Makes the descriptor readable. Any thread; never blocks.
  void signal() const noexcept {
    const std::uint64_t one = 1;
    // EAGAIN means that the counter is full: then it is readable, which is all that was asked.
    while (::write(fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  /// Makes the descriptor silent again; returns how often it was rung, 0 for never.
  std::uint64_t drain() const noexcept {
    std::uint64_t count = 0;
    ssize_t got = 0;
    while ((got = ::read(fd_.get(), &count, sizeof count)) < 0 && errno == EINTR) {
    }
    return got == static_cast<ssize_t>(sizeof count) ? count : 0;
  }

  /// Gives the descriptor up, to send it to a peer or hand it to a caller.
  [[nodiscard]] UniqueFd release() && noexcept { return std::move(fd_); }

 private:
  UniqueFd fd_;
};

}  // namespace headrace
