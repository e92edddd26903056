// SPDX-License-Identifier: Apache-2.0
// A function that waits by `co_yield`: each `go_on` runs it to its next wait, or to its end.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace headrace::kernels {

struct Waits {};

class Story {
 public:
  struct promise_type {
    Story get_return_object() { return Story(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(Waits) noexcept { return {}; }
    void return_void() {}
    [[noreturn]] void unhandled_exception() { std::terminate(); }
  };

  Story(Story&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Story& operator=(Story&&) = delete;
  ~Story() {
    if (handle_) handle_.destroy();
  }

  /// False: it has ended.
  bool go_on() {
    if (!handle_.done()) handle_.resume();
    return !handle_.done();
  }

 private:
  explicit Story(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace headrace::kernels
