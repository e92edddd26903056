// SPDX-License-Identifier: Apache-2.0
// Windows in kernels, with CPU threads as the scopes of ranks: the protocols, which the thread sanitizer
// sees.
#include "ranks.hpp"

#include <headrace/device/window.cuh>

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace headrace::test {
namespace {

using device::Comparison;
using device::Scope;

/// The memory of some ranks, and a handle for each.
struct DeviceRanks {
  explicit DeviceRanks(unsigned size, std::size_t bytes, std::int64_t timeout_ns = -1)
      : elements(size, std::vector<unsigned char>(bytes)), words(size), handles(size) {
    for (unsigned rank = 0; rank < size; ++rank) {
      headrace_device_window_v1& handle = handles[rank];
      handle.rank = rank;
      handle.size = size;
      handle.abort = reinterpret_cast<std::uint64_t>(&abort);
      handle.timeout_ns = timeout_ns;
      for (unsigned other = 0; other < size; ++other) {
        handle.elements[other] = reinterpret_cast<std::uint64_t>(elements[other].data());
        handle.bytes[other] = bytes;
        handle.words[other] = reinterpret_cast<std::uint64_t>(&words[other]);
      }
    }
  }
  [[nodiscard]] unsigned size() const { return static_cast<unsigned>(handles.size()); }
  [[nodiscard]] device::Window window(unsigned rank) const { return device::Window(&handles[rank]); }

  std::vector<std::vector<unsigned char>> elements;
  std::vector<headrace_device_words_v1> words;
  std::vector<headrace_device_window_v1> handles;
  std::uint64_t abort = 0;
};

TEST(DeviceWindow, a_rank_that_has_waited_for_a_signal_reads_what_was_put_before) {
  const DeviceRanks ranks(3, 100);
  on_threads(3, [&](int thread) {
    const auto rank = static_cast<unsigned>(thread), next = (rank + 1) % 3, previous = (rank + 2) % 3;
    const device::Window window = ranks.window(rank);
    for (unsigned turn = 1; turn <= 50; ++turn) {
      std::vector<unsigned char> sent(37 + turn % 16);
      std::iota(sent.begin(), sent.end(), static_cast<unsigned char>(rank + turn));
      EXPECT_TRUE(window.put<Scope::thread>(next, turn % 5, sent.data(), sent.size()));
      window.signal<Scope::thread>(next, 3, 1);
      EXPECT_TRUE(window.wait_signal<Scope::thread>(previous, 3, Comparison::ge, turn));
      std::iota(sent.begin(), sent.end(), static_cast<unsigned char>(previous + turn));
      const auto* const mine = static_cast<const unsigned char*>(window.peer_address(rank)) + turn % 5;
      EXPECT_EQ(std::memcmp(mine, sent.data(), sent.size()), 0);
      EXPECT_TRUE(window.barrier<Scope::thread>(1));
    }
  });
}

TEST(DeviceWindow, no_rank_leaves_a_barrier_before_all_have_come) {
  const DeviceRanks ranks(4, 8);
  std::atomic<unsigned> came{0};
  on_threads(4, [&](int thread) {
    const device::Window window = ranks.window(static_cast<unsigned>(thread));
    for (unsigned turn = 1; turn <= 100; ++turn) {
      ++came;
      EXPECT_TRUE(window.barrier<Scope::thread>(turn % 2));
      EXPECT_GE(came.load(), 4 * turn);
      EXPECT_TRUE(window.barrier<Scope::thread>(2));
    }
  });
}

// As headrace.fused has it: a second barrier would cost as much as the first.
TEST(DeviceWindow, one_barrier_a_turn_is_enough_for_two_slots_that_take_turns) {
  constexpr unsigned count = 3;
  constexpr std::uint64_t data = count * sizeof(std::uint64_t);  // behind the words of the barrier
  const DeviceRanks ranks(count, data + 2 * count * sizeof(std::uint64_t));
  on_threads(count, [&](int thread) {
    const auto rank = static_cast<unsigned>(thread);
    const device::Window window = ranks.window(rank);
    for (std::uint64_t turn = 1; turn <= 200; ++turn) {
      const std::uint64_t slots = data + turn % 2 * count * sizeof(std::uint64_t), sent = turn * (rank + 1);
      for (unsigned to = 0; to < count; ++to)
        EXPECT_TRUE(window.put<Scope::thread>(to, slots + rank * sizeof sent, &sent, sizeof sent));
      EXPECT_TRUE(window.barrier_at<Scope::thread>(0));
      std::array<std::uint64_t, count> got{};
      std::memcpy(got.data(), static_cast<const unsigned char*>(window.peer_address(rank)) + slots,
                  sizeof got);
      EXPECT_THAT(got, testing::ElementsAre(turn, 2 * turn, 3 * turn));
    }
  });
}

TEST(DeviceWindow, signals_are_set_and_added_and_each_number_is_apart) {
  const DeviceRanks ranks(2, 8, 0);  // a wait looks once
  const device::Window from = ranks.window(0), to = ranks.window(1);
  from.signal<Scope::thread>(1, 0, 7, device::Signal::set);
  from.signal<Scope::thread>(1, 0, 2);
  EXPECT_EQ(to.read_signal(0, 0), 9U);
  EXPECT_EQ(to.read_signal(0, 1), 0U);
  EXPECT_EQ(to.read_signal(1, 0), 0U);
  EXPECT_TRUE(to.wait_signal<Scope::thread>(0, 0, Comparison::eq, 9));
  EXPECT_TRUE(to.wait_signal<Scope::thread>(0, 0, Comparison::ne, 8));
  EXPECT_TRUE(to.wait_signal<Scope::thread>(0, 0, Comparison::lt, 10));
  EXPECT_TRUE(to.wait_signal<Scope::thread>(0, 0, Comparison::le, 9));
  EXPECT_TRUE(to.wait_signal<Scope::thread>(0, 0, Comparison::gt, 8));
  EXPECT_FALSE(to.wait_signal<Scope::thread>(0, 0, Comparison::gt, 9));
  EXPECT_FALSE(to.wait_signal<Scope::thread>(0, 0, Comparison::lt, 9));
  to.reset_signal(0, 0);
  EXPECT_EQ(to.read_signal(0, 0), 0U);
}

TEST(DeviceWindow, counters_are_those_of_one_rank) {
  const DeviceRanks ranks(2, 8, 0);
  const device::Window window = ranks.window(1);
  window.add_counter<Scope::thread>(15, 3);
  window.add_counter<Scope::thread>(15, 4);
  EXPECT_TRUE(window.wait_counter<Scope::thread>(15, Comparison::eq, 7));
  EXPECT_FALSE(window.wait_counter<Scope::thread>(14, Comparison::ge, 1));
  EXPECT_EQ(ranks.window(0).read_counter(15), 0U);
  window.reset_counter(15);
  EXPECT_EQ(window.read_counter(15), 0U);
}

TEST(DeviceWindow, a_put_that_does_not_fit_writes_nothing) {
  const DeviceRanks ranks(2, 10);
  const device::Window window = ranks.window(0);
  const std::vector<unsigned char> bytes(11, 1);
  EXPECT_FALSE(window.put<Scope::thread>(1, 0, bytes.data(), 11));
  EXPECT_FALSE(window.put<Scope::thread>(1, 11, bytes.data(), 0));
  EXPECT_FALSE(window.put<Scope::thread>(1, 1, bytes.data(), UINT64_MAX));
  EXPECT_THAT(ranks.elements[1], testing::Each(0));
  EXPECT_TRUE(window.put<Scope::thread>(1, 0, bytes.data(), 10));
  EXPECT_THAT(ranks.elements[1], testing::Each(1));
}

TEST(DeviceWindow, waits_end_when_they_are_late_and_when_the_communicator_has_ended) {
  const DeviceRanks late(2, 16, 1'000'000);
  EXPECT_FALSE(late.window(0).wait_signal<Scope::thread>(1, 0, Comparison::ge, 1));
  EXPECT_FALSE(late.window(0).barrier<Scope::thread>(0));
  EXPECT_FALSE(late.window(0).barrier_at<Scope::thread>(0));
  DeviceRanks aborted(2, 8);
  aborted.abort = 1;
  EXPECT_FALSE(aborted.window(0).wait_signal<Scope::thread>(1, 0, Comparison::ge, 1));
  EXPECT_FALSE(aborted.window(0).barrier<Scope::thread>(0));
}

}  // namespace
}  // namespace headrace::test
