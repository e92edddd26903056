// SPDX-License-Identifier: Apache-2.0
#include "fabric/callbacks.hpp"

#include "base/errors.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace headrace::fabric {

struct Callbacks::State {
  std::mutex mutex;
  std::condition_variable ready;
  std::deque<std::function<void()>> calls;
  bool closed = false;
  std::thread::id thread;
  bool started = false;
  bool finished = false;  // the thread runs no callback any more

  std::mutex error_mutex;
  std::shared_ptr<const std::function<void(const Error&)>> on_error;
  std::atomic<std::uint64_t> failed = 0;

  bool run_one(const std::function<void()>& call) {
    try {
      call();
      return false;
    } catch (const std::exception& thrown) {
      ++failed;
      tell(make_error(Code::internal, "a callback has thrown: {}", thrown.what()));
    } catch (...) {
      ++failed;
      tell(make_error(Code::internal, "a callback has thrown something that is no std::exception"));
    }
    return true;
  }

  void tell(const Error& error) {
    std::shared_ptr<const std::function<void(const Error&)>> told;
    {
      const std::lock_guard lock(error_mutex);
      told = on_error;
    }
    if (told == nullptr) return;
    try {
      (*told)(error);
    } catch (...) {
      ++failed;  // there is nobody left to tell
    }
  }

  /// Until it is closed and the queue is empty.
  void run_all() {
    std::unique_lock lock(mutex);
    for (;;) {
      ready.wait(lock, [&] { return closed || !calls.empty(); });
      if (calls.empty()) break;
      auto call = std::move(calls.front());
      calls.pop_front();
      lock.unlock();
      run_one(call);
      call = nullptr;  // what it holds may end a fabric
      lock.lock();
    }
    finished = true;
    ready.notify_all();
  }

  /// With the signals of the program: a callback may start a process, which inherits them. If the system
  /// makes no thread now, the next callback tries again.
  void start(const std::shared_ptr<State>& self) {
    if (started) return;
    try {
      std::thread made([self] { self->run_all(); });
      thread = made.get_id();
      made.detach();  // `close` waits for `finished`, unless a callback calls it
      started = true;
    } catch (const std::system_error&) {
    }
  }
};

Callbacks::Callbacks() : state_(std::make_shared<State>()) {}

void Callbacks::push(std::function<void()> call) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->closed) {
      state_->calls.push_back(std::move(call));
      state_->ready.notify_one();
      state_->start(state_);
      return;
    }
  }
  state_->run_one(call);
}

void Callbacks::tell(Error error) {
  push([state = state_.get(), error = std::move(error)] { state->tell(error); });
}

bool Callbacks::run(const std::function<void()>& call) { return state_->run_one(call); }

void Callbacks::on_error(std::function<void(const Error&)> failed) {
  auto next = failed ? std::make_shared<const std::function<void(const Error&)>>(std::move(failed)) : nullptr;
  const std::lock_guard lock(state_->error_mutex);
  state_->on_error.swap(next);
}

std::uint64_t Callbacks::failed() const { return state_->failed; }

void Callbacks::close() {
  std::unique_lock lock(state_->mutex);
  state_->closed = true;
  state_->ready.notify_all();
  if (!std::exchange(state_->started, true)) {  // there is no thread: this one runs what waits for it
    state_->thread = std::this_thread::get_id();
    lock.unlock();
    state_->run_all();
    return;
  }
  if (state_->thread == std::this_thread::get_id()) return;
  state_->ready.wait(lock, [this] { return state_->finished; });
}

}  // namespace headrace::fabric
