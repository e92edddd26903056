// SPDX-License-Identifier: Apache-2.0
// One epoll set that waits with a deadline in nanoseconds.
#pragma once

#include "base/clock.hpp"
#include "base/unique_fd.hpp"

#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace {

class Epoll {
 public:
  [[nodiscard]] static Result<Epoll> create();

  Epoll(Epoll&& other) noexcept : fd_(std::move(other.fd_)), fine_timeout_(other.fine_timeout_.load()) {}
  Epoll& operator=(Epoll&& other) noexcept {
    fd_ = std::move(other.fd_);
    fine_timeout_ = other.fine_timeout_.load();
    return *this;
  }

  /// Watches `fd` for `events` (EPOLLIN | EPOLLOUT | EPOLLET ...). Events carry `key` in
  /// epoll_event::data.u64.
  [[nodiscard]] Result<void> add(int fd, std::uint32_t events, std::uint64_t key);
  [[nodiscard]] Result<void> modify(int fd, std::uint32_t events, std::uint64_t key);
  /// Stops watching `fd`. Call it before the close: a duplicate of the descriptor would keep the watch alive.
  [[nodiscard]] Result<void> remove(int fd);

  /// Fills `events` and returns their number; 0 if the deadline passed or a signal arrived.
  [[nodiscard]] Result<std::size_t> wait(std::span<epoll_event> events, Deadline deadline);

  /// The set's descriptor is readable while an event waits in it, so one epoll set can watch another.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  explicit Epoll(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  Result<void> control(int operation, const char* verb, int fd, std::uint32_t events, std::uint64_t key);

  UniqueFd fd_;
  // Set to false once the kernel (before 5.11) or a container's filter refuses epoll_pwait2; from then on
  // deadlines are rounded up to milliseconds.
  std::atomic<bool> fine_timeout_ = true;
};

}  // namespace headrace
