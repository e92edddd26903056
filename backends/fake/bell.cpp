// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/bell.hpp"

#include "base/errors.hpp"

#include <sys/timerfd.h>

namespace headrace::fake {

Result<Bell> Bell::create() {
  HEADRACE_TRY(epoll, Epoll::create());
  HEADRACE_TRY(event, EventFd::create());
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return os_error(errno, "create a timer");
  HEADRACE_TRY_VOID(epoll.add(event.fd(), EPOLLIN, 0));
  HEADRACE_TRY_VOID(epoll.add(timer.get(), EPOLLIN, 0));
  return Bell(std::move(epoll), std::move(event), std::move(timer));
}

void Bell::ring() {
  event_.signal();
  rung_ = true;
}

void Bell::ring_in(std::uint64_t nanoseconds) {
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
  when.it_value.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
  ::timerfd_settime(timer_.get(), 0, &when, nullptr);
  timer_set_ = true;
}

void Bell::silence() {
  if (std::exchange(rung_, false)) event_.drain();
  std::uint64_t rings = 0;
  if (timer_set_ && ::read(timer_.get(), &rings, sizeof rings) > 0) timer_set_ = false;  // else: not yet
}

}  // namespace headrace::fake
