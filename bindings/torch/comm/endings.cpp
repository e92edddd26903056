// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/comm/endings.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace headrace::torch_group {
namespace {

class Endings {
 public:
  Endings() {
    std::thread([this] { run(); }).detach();
  }

  void put(std::function<void()> function) {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(function));
    changed_.notify_all();
  }

  void stop() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    // A callback of Python's may be an endless loop.
    changed_.wait_for(lock, std::chrono::seconds(2), [this] { return !running_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) break;
      std::function<void()> function = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      function();
      function = nullptr;  // what it holds may need the GIL to go
      lock.lock();
    }
    running_ = false;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false, running_ = true;
};

/// Of this process: a forked child, which has no thread of its parent's, makes its own. Never destroyed.
std::atomic<Endings*> endings{nullptr};
std::atomic<bool> stopped{false};

Endings& of_this_process() {
  static std::mutex making;
  static const int forks = ::pthread_atfork([] { making.lock(); }, [] { making.unlock(); },
                                            [] {
                                              endings = nullptr;
                                              making.unlock();
                                            });
  static_cast<void>(forks);
  if (Endings* made = endings) return *made;
  const std::scoped_lock lock(making);
  if (endings == nullptr) endings = new Endings;
  return *endings;
}

/// A function that the last of several works calls.
struct Countdown {
  std::atomic<std::size_t> left;
  std::function<void()> function;
};

}  // namespace

void at_endings(std::function<void()> function) {
  if (!stopped) return of_this_process().put(std::move(function));
  static_cast<void>(new std::function<void()>(std::move(function)));  // what it holds may need the GIL to go
}

void after(std::span<const Work> works, std::function<void()> function) {
  if (works.empty()) return at_endings(std::move(function));
  const auto countdown = std::make_shared<Countdown>(works.size(), std::move(function));
  for (const Work& work : works)
    work.on_end([countdown] {
      if (countdown->left.fetch_sub(1) == 1) at_endings(std::move(countdown->function));
    });
}

void stop_endings() {
  stopped = true;
  if (Endings* made = endings) made->stop();
}

}  // namespace headrace::torch_group
