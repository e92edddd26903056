// SPDX-License-Identifier: Apache-2.0
// A fixed number of threads that run short pieces of work, with a bound on how much may wait for them.
#pragma once

#include "base/bounded_queue.hpp"
#include "base/errors.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace headrace {

class WorkerPool {
 public:
  /// A piece of work. It must not throw (that ends the process) and should not block on another task of the
  /// same pool except by calling run_one() while it waits.
  using Task = std::function<void()>;

  /// Starts `threads` threads named "<name>-<n>" (cut to the system's 15 letters); at most `capacity` tasks
  /// wait. With 0 threads the work is done by whoever calls run_one().
  ///   errors   exhausted (the system refuses another thread)
  [[nodiscard]] static Result<std::unique_ptr<WorkerPool>> open(std::string_view name, std::size_t threads,
                                                                std::size_t capacity);

  /// Runs what was submitted, then joins the threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Queues a task. False when the queue is full, and `task` is untouched: run it here, or run_one() and try
  /// again.
  [[nodiscard]] bool submit(Task& task) { return queue_.try_push(task); }
  [[nodiscard]] bool submit(Task&& task) { return queue_.try_push(task); }

  /// Runs the oldest waiting task on the caller's thread; false when none waits. How a submitter helps while
  /// it waits.
  bool run_one();

  [[nodiscard]] std::size_t threads() const noexcept { return threads_.size(); }

 private:
  explicit WorkerPool(std::size_t capacity) : queue_(capacity) {}
  void work() noexcept;

  BoundedQueue<Task> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace headrace
