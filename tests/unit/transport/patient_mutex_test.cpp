// SPDX-License-Identifier: Apache-2.0
#include "transport/patient_mutex.hpp"
#include "support/sleeping_thread.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace::transport {
namespace {

class PatientMutexTest : public ::testing::TestWithParam<bool> {};

TEST_P(PatientMutexTest, lets_one_thread_in_at_a_time) {
  PatientMutex mutex(GetParam());
  int inside = 0, most = 0, times = 0;
  std::latch start(4);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        start.arrive_and_wait();
        for (int i = 0; i < 2000; ++i) {
          const std::scoped_lock lock(mutex);
          most = std::max(most, ++inside);
          ++times;
          --inside;
        }
      });
  }
  EXPECT_EQ(most, 1);
  EXPECT_EQ(times, 8000);
}

TEST_P(PatientMutexTest, waits_for_an_owner_who_takes_longer_than_anybody_looks) {
  PatientMutex mutex(GetParam());
  bool done = false;
  std::unique_lock held(mutex);
  std::atomic<pid_t> waiter = 0;
  std::jthread other([&] {
    waiter = ::gettid();
    const std::scoped_lock lock(mutex);
    EXPECT_TRUE(done);
  });
  while (waiter == 0 || !test::sleeps(waiter)) std::this_thread::yield();
  done = true;
  held.unlock();
}

INSTANTIATE_TEST_SUITE_P(Looking, PatientMutexTest, ::testing::Bool());

}  // namespace
}  // namespace headrace::transport
