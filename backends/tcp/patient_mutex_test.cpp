// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/patient_mutex.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace headrace::tcp {
namespace {

class PatientMutexTest : public ::testing::TestWithParam<bool> {};

TEST_P(PatientMutexTest, lets_one_thread_in_at_a_time) {
  PatientMutex mutex(GetParam());
  int inside = 0, most = 0, times = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
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
  std::jthread other([&] {
    const std::scoped_lock lock(mutex);
    EXPECT_TRUE(done);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  done = true;
  held.unlock();
}

INSTANTIATE_TEST_SUITE_P(Looking, PatientMutexTest, ::testing::Bool());

}  // namespace
}  // namespace headrace::tcp
