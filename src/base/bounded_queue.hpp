// SPDX-License-Identifier: Apache-2.0
// A queue between threads with a fixed capacity: a producer that is too fast gets `false` and uses no more
// memory.
#pragma once

#include "base/clock.hpp"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace headrace {

/// Any number of producers and consumers. It uses a mutex and two conditions: it is for control paths and
/// tasks, where an item costs far more than the lock.
template <class T>
class BoundedQueue {
 public:
  /// Holds at most `capacity` items; 0 is taken as 1.
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity == 0 ? 1 : capacity) {}
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  /// Appends unless the queue is full or closed. `item` is moved from only if true is returned.
  [[nodiscard]] bool try_push(T& item) {
    {
      const std::scoped_lock lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return true;
  }
  [[nodiscard]] bool try_push(T&& item) { return try_push(item); }

  /// Appends, and waits for room until the deadline. False if the deadline passed or the queue is closed.
  [[nodiscard]] bool push(T item, Deadline deadline = Deadline::never()) {
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] { return closed_ || items_.size() < capacity_; };
      if (!wait(not_full_, lock, deadline, ready) || closed_) return false;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return true;
  }

  /// Takes the oldest item if there is one.
  [[nodiscard]] std::optional<T> try_pop() {
    std::unique_lock lock(mutex_);
    return take(lock);
  }

  /// Takes the oldest item, and waits for one until the deadline. Nullopt if the deadline passed, or if the
  /// queue is closed and empty: items pushed before the close are still returned.
  [[nodiscard]] std::optional<T> pop(Deadline deadline = Deadline::never()) {
    std::unique_lock lock(mutex_);
    if (!wait(not_empty_, lock, deadline, [&] { return closed_ || !items_.empty(); })) return std::nullopt;
    return take(lock);
  }

  /// Refuses further items and wakes all waiting threads.
  void close() {
    {
      const std::scoped_lock lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
    not_full_.notify_all();
  }

  [[nodiscard]] std::size_t size() const {
    const std::scoped_lock lock(mutex_);
    return items_.size();
  }

 private:
  template <class Ready>
  static bool wait(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, Deadline deadline,
                   Ready ready) {
    if (!deadline.is_never()) return condition.wait_until(lock, deadline.time_point(), ready);
    condition.wait(lock, ready);
    return true;
  }

  std::optional<T> take(std::unique_lock<std::mutex>& lock) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock.unlock();
    not_full_.notify_one();
    return item;
  }

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace headrace
