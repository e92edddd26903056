// SPDX-License-Identifier: Apache-2.0
// An eventfd: any thread signals it, its owner waits for it with epoll and drains it. Several signals before
// one drain count as one.
#pragma once

#include "base/unique_fd.hpp"

#include <sys/eventfd.h>

#include <cstdint>

namespace headrace {

class EventFd {
 public:
  /// Creates a non-blocking, close-on-exec eventfd that is not readable yet.
  [[nodiscard]] static Result<EventFd> create() {
    UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!fd) return os_error(errno, "create an eventfd");
    return EventFd(std::move(fd));
  }
  /// Takes ownership of an existing eventfd, for example one received through a Unix socket.
  explicit EventFd(UniqueFd fd) noexcept : fd_(std::move(fd)) {}

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  /// Makes the descriptor readable. Any thread; never blocks.
  void signal() const noexcept {
    const std::uint64_t one = 1;
    // EAGAIN means that the counter is full: the descriptor is readable already.
    while (::write(fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  /// Makes the descriptor unreadable again. Returns the number of signals since the last drain.
  std::uint64_t drain() const noexcept {
    std::uint64_t count = 0;
    ssize_t got = 0;
    while ((got = ::read(fd_.get(), &count, sizeof count)) < 0 && errno == EINTR) {
    }
    return got == static_cast<ssize_t>(sizeof count) ? count : 0;
  }

  /// Gives up ownership of the descriptor, to send it to a peer or to return it to a caller.
  [[nodiscard]] UniqueFd release() && noexcept { return std::move(fd_); }

 private:
  UniqueFd fd_;
};

}  // namespace headrace
