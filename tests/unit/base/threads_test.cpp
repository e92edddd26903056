// SPDX-License-Identifier: Apache-2.0
#include "base/bounded_queue.hpp"
#include "base/futex.hpp"
#include "base/worker_pool.hpp"
#include "support/child_ending.hpp"

#include <gtest/gtest.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <numeric>

namespace headrace {
namespace {

using std::chrono::milliseconds;

TEST(BoundedQueue, AFullQueueRefusesAnItemAndLeavesItWithTheCaller) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.try_push(second));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(**queue.try_pop(), 1);
  EXPECT_TRUE(queue.try_push(second));
}

TEST(BoundedQueue, AClosedQueueGivesTheItemsPushedBeforeAndThenNothing) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.push(1));
  EXPECT_TRUE(queue.push(2));
  queue.close();
  EXPECT_FALSE(queue.push(3));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, AWaitEndsAtItsDeadline) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.pop(Deadline::after(milliseconds(1))), std::nullopt);
  EXPECT_TRUE(queue.push(1, Deadline::after(milliseconds(1))));
  EXPECT_FALSE(queue.push(2, Deadline::after(milliseconds(1))));
  EXPECT_EQ(queue.size(), 1U);
}

TEST(BoundedQueue, CloseEndsEveryWait) {
  BoundedQueue<int> queue(1);
  std::thread consumer([&] { EXPECT_EQ(queue.pop(), std::nullopt); });
  queue.close();
  consumer.join();
  BoundedQueue<int> full(1);
  ASSERT_TRUE(full.push(1));
  std::thread producer([&] { EXPECT_FALSE(full.push(2)); });
  full.close();
  producer.join();
}

TEST(BoundedQueue, ManyProducersAndConsumersLoseAndDuplicateNothing) {
  constexpr int each = 2000;
  BoundedQueue<int> queue(7);
  std::vector<std::thread> producers;
  std::vector<std::thread> consumers;
  std::atomic<long> sum = 0;
  std::atomic<int> count = 0;
  for (int i = 0; i < 3; ++i) {
    consumers.emplace_back([&] {
      while (const auto item = queue.pop()) {
        sum += *item;
        ++count;
      }
    });
    producers.emplace_back([&] {
      for (int n = 1; n <= each; ++n) EXPECT_TRUE(queue.push(n));
    });
  }
  for (std::thread& producer : producers) producer.join();
  queue.close();
  for (std::thread& consumer : consumers) consumer.join();
  EXPECT_EQ(count, 3 * each);
  EXPECT_EQ(sum, 3L * each * (each + 1) / 2);
}

TEST(WorkerPool, ADestroyedPoolHasRunEveryTaskSubmittedBefore) {
  std::atomic<int> done = 0;
  {
    const auto pool = WorkerPool::open("test", 3, 8).value();
    EXPECT_EQ(pool->threads(), 3U);
    for (int i = 0; i < 500; ++i) {
      WorkerPool::Task task = [&] { ++done; };
      while (!pool->submit(task)) pool->run_one();
    }
  }
  EXPECT_EQ(done, 500);
}

TEST(WorkerPool, TheCallerMayRunAllTasksItself) {
  int done = 0;
  const auto pool = WorkerPool::open("test", 0, 2).value();
  EXPECT_TRUE(pool->submit([&] { ++done; }));
  EXPECT_TRUE(pool->submit([&] { ++done; }));
  EXPECT_FALSE(pool->submit([&] { ++done; }));
  EXPECT_TRUE(pool->run_one());
  EXPECT_TRUE(pool->run_one());
  EXPECT_FALSE(pool->run_one());
  EXPECT_EQ(done, 2);
}

TEST(WorkerPool, TheThreadsOfAPoolHaveItsName) {
  BoundedQueue<std::string> names(1);
  const auto pool = WorkerPool::open("a-very-long-pool-name", 1, 1).value();
  // The pool sets the name just after the thread starts, so the test asks until it is set.
  const auto ask = [&] {
    EXPECT_TRUE(pool->submit([&] {
      char name[16] = "";
      ::pthread_getname_np(::pthread_self(), name, sizeof name);
      EXPECT_TRUE(names.push(name));
    }));
    return *names.pop();
  };
  const Deadline patience = Deadline::after(std::chrono::seconds(20));
  std::string name = ask();
  while (name != "a-very-long-p-0" && !patience.expired()) name = ask();
  EXPECT_EQ(name, "a-very-long-p-0");
}

TEST(Futex, AWaitOnAWordThatHasChangedReturnsAtOnce) {
  const std::atomic<std::uint32_t> word = 2;
  EXPECT_EQ(futex_wait(word, 1, Deadline::never()), FutexWait::changed);
}

TEST(Futex, AFutexWaitEndsAtItsDeadline) {
  const std::atomic<std::uint32_t> word = 1;
  const Deadline deadline = Deadline::after(milliseconds(1));
  FutexWait how = FutexWait::woken;
  while ((how = futex_wait(word, 1, deadline)) == FutexWait::woken) {
  }
  EXPECT_EQ(how, FutexWait::timed_out);
  EXPECT_TRUE(deadline.expired());
}

TEST(Futex, AThreadWakesAnother) {
  std::atomic<std::uint32_t> word = 0;
  std::thread waker([&] {
    word.store(1, std::memory_order_release);
    futex_wake(word, futex_all);
  });
  while (word.load(std::memory_order_acquire) == 0) (void)futex_wait(word, 0, Deadline::never());
  waker.join();
  EXPECT_EQ(word, 1U);
}

TEST(Futex, AProcessWakesAnotherThroughSharedMemory) {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& word = *new (page) std::atomic<std::uint32_t>(0);
  const pid_t child = ::fork();
  if (child == 0) {
    word.store(1, std::memory_order_release);
    futex_wake(word, 1, FutexScope::shared);
    ::_exit(0);
  }
  while (word.load(std::memory_order_acquire) == 0)
    (void)futex_wait(word, 0, Deadline::never(), FutexScope::shared);
  EXPECT_EQ(word, 1U);
  EXPECT_TRUE(test::ends_well(child));
  ::munmap(page, 4096);
}

}  // namespace
}  // namespace headrace
