// SPDX-License-Identifier: Apache-2.0
#include "collectives/window_queue.hpp"

#include "base/errors.hpp"
#include "base/start_thread.hpp"

#include <utility>

namespace headrace::collectives {

WindowQueue::~WindowQueue() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<void> WindowQueue::add(std::function<void()> operation) {
  const std::scoped_lock lock(mutex_);
  if (!thread_.joinable()) {
    HEADRACE_TRY(thread, start_thread("headrace-window", [this] { run(); }));
    thread_ = std::move(thread);
  }
  operations_.push_back(std::move(operation));
  changed_.notify_all();
  return {};
}

bool WindowQueue::empty() const {
  const std::scoped_lock lock(mutex_);
  return operations_.empty();
}

void WindowQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !operations_.empty(); });
    if (operations_.empty()) return;
    const std::function<void()>& operation = operations_.front();
    lock.unlock();
    operation();
    lock.lock();
    operations_.pop_front();
  }
}

}  // namespace headrace::collectives
