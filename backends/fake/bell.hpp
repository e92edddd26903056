// SPDX-License-Identifier: Apache-2.0
// What the host sleeps on: one descriptor for an eventfd and a timer.
#pragma once

#include "base/epoll.hpp"
#include "base/event_fd.hpp"

#include <cstdint>

namespace headrace::fake {

/// One thread at a time.
class Bell {
 public:
  static Result<Bell> create();

  [[nodiscard]] int descriptor() const { return epoll_.fd(); }
  void ring();
  void ring_in(std::uint64_t nanoseconds);
  /// Makes the descriptor unreadable again, if it has rung.
  void silence();

 private:
  Bell(Epoll epoll, EventFd event, UniqueFd timer)
      : epoll_(std::move(epoll)), event_(std::move(event)), timer_(std::move(timer)) {}

  Epoll epoll_;
  EventFd event_;
  UniqueFd timer_;
  bool rung_ = false;
  bool timer_set_ = false;
};

}  // namespace headrace::fake
