// SPDX-License-Identifier: Apache-2.0
#include "gpu/closer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <utility>

namespace headrace::gpu {
namespace {

/// Its destructor waits as long as the test wants.
class SlowToClose {
 public:
  SlowToClose(std::shared_future<void> allowed, std::atomic<int>& closed, std::thread::id* where = nullptr)
      : allowed_(std::move(allowed)), closed_(&closed), where_(where) {}
  SlowToClose(SlowToClose&& other) noexcept
      : allowed_(std::move(other.allowed_)),
        closed_(std::exchange(other.closed_, nullptr)),
        where_(other.where_) {}
  SlowToClose& operator=(SlowToClose&&) = delete;
  ~SlowToClose() {
    if (closed_ == nullptr) return;
    allowed_.wait();
    if (where_ != nullptr) *where_ = std::this_thread::get_id();
    ++*closed_;
  }

 private:
  std::shared_future<void> allowed_;
  std::atomic<int>* closed_;
  std::thread::id* where_;
};

TEST(Closer, lets_the_last_holder_go_on_while_the_object_closes) {
  std::promise<void> allow;
  std::atomic<int> closed = 0;
  std::thread::id where;
  {
    Closer closer;
    auto held = closer.hold(SlowToClose(allow.get_future().share(), closed, &where));
    auto other = held;
    held.reset();
    other.reset();  // returns, though closing waits
    EXPECT_EQ(closed, 0);
    allow.set_value();
  }
  EXPECT_EQ(closed, 1) << "the destructor of the closer has not waited";
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST(Closer, closes_nothing_that_is_held_and_all_that_was_let_go) {
  std::promise<void> allow;
  allow.set_value();
  const auto allowed = allow.get_future().share();
  std::atomic<int> closed = 0;
  Closer closer;
  const auto kept = closer.hold(SlowToClose(allowed, closed));
  for (int i = 0; i < 100; ++i) closer.hold(SlowToClose(allowed, closed)).reset();
  while (closed < 100) std::this_thread::yield();
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_EQ(closed, 100);
}

}  // namespace
}  // namespace headrace::gpu
