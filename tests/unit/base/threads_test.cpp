// SPDX-License-Identifier: Apache-2.0
#include "base/bounded_queue.hpp"
#include "base/futex.hpp"
#include "base/start_thread.hpp"
#include "base/worker_pool.hpp"
#include "support/child_ending.hpp"
#include "support/sleeping_thread.hpp"

#include <gtest/gtest.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <concepts>
#include <csignal>
#include <memory>
#include <numeric>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

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

/// Waits until the thread has said that it begins to wait, and sleeps. The thread may be of another process.
void until_asleep(const std::atomic<pid_t>& waiter) {
  const Deadline give_up = Deadline::after(std::chrono::seconds(60));
  while ((waiter == 0 || !test::sleeps(waiter)) && !give_up.expired()) std::this_thread::yield();
}

TEST(BoundedQueue, CloseEndsEveryWait) {
  BoundedQueue<int> empty(1), full(1);
  ASSERT_TRUE(full.push(1));
  const Deadline late = Deadline::after(std::chrono::seconds(60));
  std::array<std::atomic<pid_t>, 6> waiters{};
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < waiters.size(); ++i) {
    threads.emplace_back([&, i] {
      const Deadline deadline = i < 2 ? late : Deadline::never();
      waiters[i] = ::gettid();
      if (i % 2 == 0)
        EXPECT_EQ(empty.pop(deadline), std::nullopt);
      else
        EXPECT_FALSE(full.push(2, deadline));
    });
  }
  for (const auto& waiter : waiters) until_asleep(waiter);
  empty.close();
  full.close();
  threads.clear();
  EXPECT_FALSE(late.expired()) << "a wait has ended by its deadline";
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

/// Sleeps until the word is not 0. Says before that it begins to wait.
FutexWait sleep_until_changed(const std::atomic<std::uint32_t>& word, std::atomic<pid_t>& waiter,
                              FutexScope scope = FutexScope::process) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  FutexWait how = FutexWait::changed;
  waiter = ::gettid();
  while (word.load(std::memory_order_acquire) == 0 && how != FutexWait::timed_out)
    how = futex_wait(word, 0, deadline, scope);
  return how;
}

TEST(Futex, AThreadWakesAnother) {
  std::atomic<std::uint32_t> word = 0;
  std::atomic<pid_t> waiter = 0;
  const std::jthread waker([&] {
    until_asleep(waiter);
    word.store(1, std::memory_order_release);
    futex_wake(word, futex_all);
  });
  EXPECT_EQ(sleep_until_changed(word, waiter), FutexWait::woken);
}

TEST(Futex, AProcessWakesAnotherThroughSharedMemory) {
  struct Shared {
    std::atomic<std::uint32_t> word = 0;
    std::atomic<pid_t> waiter = 0;
  };
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& [word, waiter] = *new (page) Shared;
  const pid_t child = ::fork();
  if (child == 0) {
    until_asleep(waiter);
    word.store(1, std::memory_order_release);
    futex_wake(word, 1, FutexScope::shared);
    ::_exit(0);
  }
  EXPECT_EQ(sleep_until_changed(word, waiter, FutexScope::shared), FutexWait::woken);
  EXPECT_TRUE(test::ends_well(child));
  ::munmap(page, 4096);
}

sigset_t signal_mask() {
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return mask;
}

/// A thread that the system does not make.
struct RefusedThread {
  template <class Body>
    requires(!std::same_as<std::remove_cvref_t<Body>, RefusedThread>)
  explicit RefusedThread(Body&&) {
    throw std::system_error(EAGAIN, std::generic_category());
  }
  [[nodiscard]] static pthread_t native_handle() { return {}; }
};

TEST(StartThread, the_thread_takes_no_signal_and_the_caller_takes_its_own) {
  bool blocked = false;
  auto thread = start_thread("blocked", [&] {
                  const sigset_t mask = signal_mask();
                  blocked = ::sigismember(&mask, SIGUSR1) == 1 && ::sigismember(&mask, SIGTERM) == 1;
                }).value();
  thread.join();
  EXPECT_TRUE(blocked);
  const sigset_t mask = signal_mask();
  EXPECT_EQ(::sigismember(&mask, SIGUSR1), 0);
}

TEST(StartThread, a_thread_that_the_system_refuses_is_an_error_and_no_signal_stays_blocked) {
  const auto refused = start_thread<RefusedThread>("refused", [] {});
  EXPECT_EQ(refused.code(), Code::exhausted);
  const sigset_t mask = signal_mask();
  EXPECT_EQ(::sigismember(&mask, SIGUSR1), 0);
}

}  // namespace
}  // namespace headrace
