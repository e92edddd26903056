// SPDX-License-Identifier: Apache-2.0
// Completion queues: one descriptor for the completions of many requests.
#pragma once

#include <headrace/request.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headrace {

namespace engine {
class CompletedNumbers;
}

/// For event loops: the loop watches one eventfd, however many requests it waits for. A handle, cheap to
/// copy. Requests of several agents may use one queue. When the last handle goes, the eventfd is closed, and
/// completions to come are not queued.
///   threads  any
class CompletionQueue {
 public:
  ///   errors  exhausted (no descriptors)
  [[nodiscard]] HEADRACE_API static Result<CompletionQueue> open();

  /// Puts `number` into the queue once, at the completion of the post that is in flight. If none is, or if
  /// the post is refused after all, at once.
  HEADRACE_API void add(const Request& request, std::uint64_t number) const;
  /// Puts a number into the queue now: the end of anything else that an event loop waits for.
  HEADRACE_API void put(std::uint64_t number) const;
  /// Returns the numbers in the order of their completions, and removes them.
  [[nodiscard]] HEADRACE_API std::vector<std::uint64_t> take() const;
  /// The same, as many as `room` has room for. Returns how many. The others stay.
  [[nodiscard]] HEADRACE_API std::size_t take(std::span<std::uint64_t> room) const;
  /// An eventfd that is readable while the queue has numbers. It belongs to the queue: the `take` that leaves
  /// none drains it.
  [[nodiscard]] HEADRACE_API int event_fd() const noexcept;

 private:
  explicit CompletionQueue(std::shared_ptr<engine::CompletedNumbers> numbers)
      : numbers_(std::move(numbers)) {}

  std::shared_ptr<engine::CompletedNumbers> numbers_;
};

}  // namespace headrace
