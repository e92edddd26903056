// SPDX-License-Identifier: Apache-2.0
// Counts the tasks of an object that lie with a pool, so that the object outlives them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace headrace {

class TaskGate {
 public:
  void enter() {
    const std::lock_guard lock(mutex_);
    ++running_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) none_.notify_all();  // under the lock: the waiter may free us as soon as it has it
  }
  void wait_for_none() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [&] { return running_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::size_t running_ = 0;
};

}  // namespace headrace
