// SPDX-License-Identifier: Apache-2.0
#include "base/epoll.hpp"

#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <climits>

namespace headrace {
namespace {

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441  // the same on every architecture; C libraries before 2.35 have no wrapper
#endif

int wait_fine(int fd, epoll_event* events, int count, Deadline deadline) {
  timespec timeout{};
  const std::uint64_t left = deadline.remaining_ns();
  timeout.tv_sec = static_cast<time_t>(left / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(left % 1'000'000'000);
  return static_cast<int>(
      ::syscall(SYS_epoll_pwait2, fd, events, count, deadline.is_never() ? nullptr : &timeout, nullptr, 0));
}

int wait_coarse(int fd, epoll_event* events, int count, Deadline deadline) {
  if (deadline.is_never()) return ::epoll_wait(fd, events, count, -1);
  const std::uint64_t left_ms = (deadline.remaining_ns() + 999'999) / 1'000'000;
  return ::epoll_wait(fd, events, count, static_cast<int>(std::min<std::uint64_t>(left_ms, INT_MAX)));
}

}  // namespace

Result<Epoll> Epoll::create() {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd) return os_error(errno, "create an epoll set");
  return Epoll(std::move(fd));
}

Result<void> Epoll::control(int operation, const char* verb, int fd, std::uint32_t events,
                            std::uint64_t key) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  if (::epoll_ctl(fd_.get(), operation, fd, &event) < 0)
    return os_error(errno, "{} descriptor {} in epoll", verb, fd);
  return {};
}

Result<void> Epoll::add(int fd, std::uint32_t events, std::uint64_t key) {
  return control(EPOLL_CTL_ADD, "watch", fd, events, key);
}

Result<void> Epoll::modify(int fd, std::uint32_t events, std::uint64_t key) {
  return control(EPOLL_CTL_MOD, "change", fd, events, key);
}

Result<void> Epoll::remove(int fd) { return control(EPOLL_CTL_DEL, "forget", fd, 0, 0); }

Result<std::size_t> Epoll::wait(std::span<epoll_event> events, Deadline deadline) {
  const int count = static_cast<int>(std::min<std::size_t>(events.size(), INT_MAX));
  int ready = -1;
  if (fine_timeout_.load(std::memory_order_relaxed)) {
    ready = wait_fine(fd_.get(), events.data(), count, deadline);
    if (ready < 0 && (errno == ENOSYS || errno == EPERM))
      fine_timeout_.store(false, std::memory_order_relaxed);
  }
  if (!fine_timeout_.load(std::memory_order_relaxed))
    ready = wait_coarse(fd_.get(), events.data(), count, deadline);
  if (ready >= 0) return static_cast<std::size_t>(ready);
  if (errno == EINTR) return std::size_t{0};
  return os_error(errno, "wait on epoll set {} for {} events", fd_.get(), count);
}

}  // namespace headrace
