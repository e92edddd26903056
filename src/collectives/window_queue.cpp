// SPDX-License-Identifier: Apache-2.0
#include "collectives/window_queue.hpp"

#include "base/errors.hpp"
#include "base/start_thread.hpp"

#include <iterator>
#include <utility>

namespace headrace::collectives {

WindowQueue::~WindowQueue() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(operations_->mutex);
    operations_->stop = true;
  }
  operations_->changed.notify_all();
  if (thread_.get_id() != std::this_thread::get_id()) {
    thread_.join();
    return;
  }
  // The operation that runs drops the window. Those behind it use the window, so they run now.
  std::unique_lock lock(operations_->mutex);
  while (operations_->waiting.size() > 1) {
    const auto second = std::next(operations_->waiting.begin());
    const std::function<void()> next = std::move(*second);
    operations_->waiting.erase(second);
    lock.unlock();
    next();
    lock.lock();
  }
  thread_.detach();
}

Result<void> WindowQueue::add(std::function<void()> operation) {
  const std::scoped_lock lock(operations_->mutex);
  if (!thread_.joinable()) {
    HEADRACE_TRY(thread, start_thread("headrace-window", [operations = operations_] { run(*operations); }));
    thread_ = std::move(thread);
  }
  operations_->waiting.push_back(std::move(operation));
  operations_->changed.notify_all();
  return {};
}

bool WindowQueue::empty() const {
  const std::scoped_lock lock(operations_->mutex);
  return operations_->waiting.empty();
}

void WindowQueue::run(Operations& operations) {
  std::unique_lock lock(operations.mutex);
  while (true) {
    operations.changed.wait(lock, [&] { return operations.stop || !operations.waiting.empty(); });
    if (operations.waiting.empty()) return;
    const std::function<void()>& operation = operations.waiting.front();
    lock.unlock();
    operation();
    lock.lock();
    operations.waiting.pop_front();
  }
}

}  // namespace headrace::collectives
