// SPDX-License-Identifier: Apache-2.0
// The asynchronous operations of a window. They run one after another on a thread of their own, which starts
// with the first: a thread that waits for one rank must not stop the collectives.
#pragma once

#include <headrace/result.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace headrace::collectives {

class WindowQueue {
 public:
  WindowQueue() = default;
  /// Runs what is there, and ends the thread.
  ~WindowQueue();
  WindowQueue(const WindowQueue&) = delete;
  WindowQueue& operator=(const WindowQueue&) = delete;

  ///   errors  exhausted (no thread)
  Result<void> add(std::function<void()> operation);
  /// Whether all have ended.
  [[nodiscard]] bool empty() const;

 private:
  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> operations_;  // the first one may be running
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace headrace::collectives
