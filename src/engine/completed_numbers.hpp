// SPDX-License-Identifier: Apache-2.0
// The numbers in a CompletionQueue, and the eventfd that is readable while there are some.
#pragma once

#include "base/event_fd.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace headrace::engine {

class CompletedNumbers {
 public:
  explicit CompletedNumbers(EventFd event) : event_(std::move(event)) {}

  /// From any thread, also inside a backend's call. One system call for all numbers until none is left.
  void push(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    numbers_.push_back(number);
    if (numbers_.size() == 1) event_.signal();
  }
  [[nodiscard]] std::vector<std::uint64_t> take() {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> all(numbers_.begin(), numbers_.end());
    remove_first(all.size());
    return all;
  }
  /// The first ones, as many as there is room for. Returns how many.
  [[nodiscard]] std::size_t take(std::span<std::uint64_t> room) {
    const std::lock_guard lock(mutex_);
    const std::size_t count = std::min(room.size(), numbers_.size());
    std::copy_n(numbers_.begin(), count, room.begin());
    remove_first(count);
    return count;
  }
  [[nodiscard]] int event_fd() const noexcept { return event_.fd(); }

 private:
  /// `mutex_` is held.
  void remove_first(std::size_t count) {
    numbers_.erase(numbers_.begin(), numbers_.begin() + static_cast<std::ptrdiff_t>(count));
    if (count > 0 && numbers_.empty()) event_.drain();
  }

  EventFd event_;
  std::mutex mutex_;
  std::deque<std::uint64_t> numbers_;
};

}  // namespace headrace::engine
