// SPDX-License-Identifier: Apache-2.0
// The numbers in a CompletionQueue, and the eventfd that is readable while there are some.
#pragma once

#include "base/event_fd.hpp"

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::engine {

class CompletedNumbers {
 public:
  explicit CompletedNumbers(EventFd event) : event_(std::move(event)) {}

  /// From any thread, also inside a backend's call. One system call for all numbers up to the next `take`.
  void push(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    numbers_.push_back(number);
    if (numbers_.size() == 1) event_.signal();
  }
  [[nodiscard]] std::vector<std::uint64_t> take() {
    const std::lock_guard lock(mutex_);
    if (!numbers_.empty()) event_.drain();
    return std::exchange(numbers_, {});
  }
  [[nodiscard]] int event_fd() const noexcept { return event_.fd(); }

 private:
  EventFd event_;
  std::mutex mutex_;
  std::vector<std::uint64_t> numbers_;
};

}  // namespace headrace::engine
