// SPDX-License-Identifier: Apache-2.0
// The thread that the caller's callbacks run on: no lock of ours is held there, and no backend waits for it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace headrace::engine {

class CallbackQueue {
 public:
  ~CallbackQueue() { close(); }

  /// Runs `call` on the callback thread, which is started with the first one. Dropped after close().
  void push(std::function<void()> call) {
    const std::lock_guard lock(state_->mutex);
    if (state_->closed) return;
    state_->calls.push_back(std::move(call));
    if (!thread_.joinable()) start();
    state_->ready.notify_one();
  }

  /// Drops what is queued and ends the thread once its present call is over. On the callback thread itself (a
  /// callback that ends the agent) it does not wait.
  void close() {
    std::thread ending;
    {
      const std::lock_guard lock(state_->mutex);
      state_->closed = true;
      state_->calls.clear();
      state_->ready.notify_all();
      ending = std::move(thread_);
    }
    if (!ending.joinable()) return;
    if (ending.get_id() == std::this_thread::get_id()) {
      ending.detach();  // the state is shared: the thread outlives this object by the rest of one call
    } else {
      ending.join();
    }
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable ready;
    std::deque<std::function<void()>> calls;
    bool closed = false;
  };

  /// With the signals of the program: a callback may start a process, which inherits them. If the system
  /// makes no thread, the calls wait until the next one finds room for it.
  void start() noexcept {
    try {
      thread_ = std::thread([state = state_] { run(*state); });
    } catch (const std::system_error&) {
    }
  }

  static void run(State& state) {
    std::unique_lock lock(state.mutex);
    for (;;) {
      state.ready.wait(lock, [&] { return state.closed || !state.calls.empty(); });
      if (state.closed) return;
      auto call = std::move(state.calls.front());
      state.calls.pop_front();
      lock.unlock();
      call();
      call = nullptr;  // what it holds may end an agent: not under the lock
      lock.lock();
    }
  }

  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace headrace::engine
