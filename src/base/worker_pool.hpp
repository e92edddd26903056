// SPDX-License-Identifier: Apache-2.0
// A fixed number of threads that run short tasks, with a bound on the number of waiting tasks.
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
  /// A short task. It must not throw (that ends the process). It should not block on another task of the same
  /// pool unless it calls run_one() while it waits.
  using Task = std::function<void()>;

  /// Starts `threads` threads named "<name>-<n>" (cut to the system's limit of 15 letters); at most
  /// `capacity` tasks wait. With 0 threads, tasks run inside run_one().
  ///   errors   exhausted (the system refuses another thread)
  [[nodiscard]] static Result<std::unique_ptr<WorkerPool>> open(std::string_view name, std::size_t threads,
                                                                std::size_t capacity);

  /// Runs all submitted tasks, then joins the threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Queues a task. False if the queue is full; `task` is then unchanged: run it here, or call run_one() and
  /// retry.
  [[nodiscard]] bool submit(Task& task) { return queue_.try_push(task); }
  [[nodiscard]] bool submit(Task&& task) { return queue_.try_push(task); }

  /// Runs the oldest waiting task on the caller's thread; false if none waits. A submitter helps this way
  /// while it waits.
  bool run_one();

  [[nodiscard]] std::size_t threads() const noexcept { return threads_.size(); }

 private:
  explicit WorkerPool(std::size_t capacity) : queue_(capacity) {}
  void work() noexcept;

  BoundedQueue<Task> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace headrace
