// SPDX-License-Identifier: Apache-2.0
#include "base/worker_pool.hpp"

#include <pthread.h>

#include <system_error>

namespace headrace {
namespace {

void name_thread(std::thread& thread, std::string_view name, std::size_t index) {
  constexpr std::size_t longest = 15;
  const std::string number = fmt::format("-{}", index);
  const std::string text = std::string(name.substr(0, longest - number.size())) + number;
  ::pthread_setname_np(thread.native_handle(),
                       text.c_str());  // without a name the thread works too
}

}  // namespace

Result<std::unique_ptr<WorkerPool>> WorkerPool::open(std::string_view name, std::size_t threads,
                                                     std::size_t capacity) {
  std::unique_ptr<WorkerPool> pool(new WorkerPool(capacity));
  pool->threads_.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    try {
      pool->threads_.emplace_back([raw = pool.get()] { raw->work(); });
    } catch (const std::system_error& refused) {
      return os_error(Code::exhausted, refused.code().value(), "start thread {} of {} of pool {}", i + 1,
                      threads, name);
    }
    name_thread(pool->threads_.back(), name, i);
  }
  return pool;
}

WorkerPool::~WorkerPool() {
  queue_.close();
  for (std::thread& thread : threads_) thread.join();
  while (run_one()) {  // without threads the destructor runs the queued tasks
  }
}

bool WorkerPool::run_one() {
  std::optional<Task> task = queue_.try_pop();
  if (!task) return false;
  (*task)();
  return true;
}

void WorkerPool::work() noexcept {
  while (std::optional<Task> task = queue_.pop()) (*task)();
}

}  // namespace headrace
