// SPDX-License-Identifier: Apache-2.0
#include "engine/copy_pool.hpp"

#include "base/affinity.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

namespace headrace::engine {
namespace {

constexpr std::size_t most_threads = 32;  // beyond that host memory is the limit on every machine measured
constexpr std::size_t queue_capacity = 65536;

std::unique_ptr<WorkerPool> open_pool() {
  auto pool = WorkerPool::open("hr-copy", copy_pool_threads(), queue_capacity);
  if (!pool)
    pool = WorkerPool::open("hr-copy", 0, queue_capacity);  // no threads to be had: waiters copy alone
  return std::move(pool).value();
}

}  // namespace

std::size_t copy_pool_threads() { return std::clamp<std::size_t>(usable_cores() - 1, 1, most_threads); }

WorkerPool& copy_pool() {
  static std::mutex mutex;
  static WorkerPool* pool = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (pool == nullptr || owner != ::getpid()) {
    pool = open_pool().release();
    owner = ::getpid();
  }
  return *pool;
}

}  // namespace headrace::engine
