// SPDX-License-Identifier: Apache-2.0
#include "base/bell.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace headrace {
namespace {

using namespace std::chrono_literals;

TEST(BellTest, a_sleeper_wakes_when_it_rings) {
  std::atomic<std::uint32_t> word{0};
  std::atomic<bool> there{false};
  const Bell bell(word);
  std::jthread writer([&] {
    while (word.load() == 0) std::this_thread::yield();
    there.store(true);
    bell.ring();
  });
  const auto begin = std::chrono::steady_clock::now();
  while (!there.load()) {
    bell.arm();
    if (there.load()) break;
    bell.sleep(Deadline::after(100s));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 50s);
}

TEST(BellTest, one_that_rang_between_arming_and_sleeping_does_not_let_sleep) {
  std::atomic<std::uint32_t> word{0};
  const Bell bell(word);
  bell.arm();
  bell.ring();
  const auto begin = std::chrono::steady_clock::now();
  bell.sleep(Deadline::after(100s));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 50s);
}

TEST(BellTest, one_that_nobody_armed_is_not_written) {
  std::atomic<std::uint32_t> word{0};
  Bell(word).ring();
  EXPECT_EQ(word.load(), 0U);
  Bell().ring();
}

TEST(BellTest, a_sleep_ends_at_its_deadline) {
  std::atomic<std::uint32_t> word{0};
  const Bell bell(word);
  bell.arm();
  bell.sleep(Deadline::after(5ms));
  EXPECT_EQ(word.load(), 1U);
}

}  // namespace
}  // namespace headrace
