// SPDX-License-Identifier: Apache-2.0
#include "transport/chunk_table.hpp"

#include "transport/request.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>

namespace headrace::transport {
namespace {

Unanswered unanswered(std::uint32_t chunk, std::uint64_t bytes = 100, std::uint32_t ranges = 3) {
  Unanswered made;
  made.wire_id = 7;
  made.chunk.number = chunk;
  made.chunk.bytes = bytes;
  made.ranges = ranges;
  return made;
}

TEST(ChunkTable, chunks_are_taken_in_any_order_each_once) {
  ChunkTable table;
  const auto first = table.add(unanswered(0)), second = table.add(unanswered(1)),
             third = table.add(unanswered(2));
  EXPECT_EQ(table.take(second)->chunk.number, 1u);
  EXPECT_EQ(table.take(third)->chunk.number, 2u);
  EXPECT_FALSE(table.take(second)) << "answered twice";
  EXPECT_FALSE(table.take(third));
  EXPECT_EQ(table.find(first)->chunk.number, 0u);
  EXPECT_EQ(table.size(), 1u);
  EXPECT_TRUE(table.take(first));
  EXPECT_EQ(table.size(), 0u);
}

TEST(ChunkTable, a_number_that_was_not_given_out_finds_nothing_and_changes_nothing) {
  ChunkTable table;
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find(table.front()), nullptr) << "there is none yet";
  const auto only = table.add(unanswered(0));
  for (const std::uint64_t forged : {std::uint64_t{0}, only - 1, only + 1, only + 15, only + 16,
                                     only + (1 << 20), UINT64_MAX, UINT64_MAX - 15}) {
    EXPECT_EQ(table.find(forged), nullptr) << forged;
    EXPECT_FALSE(table.take(forged)) << forged;
  }
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.bytes(), 100u);
  EXPECT_EQ(table.ranges(), 3u);
  EXPECT_TRUE(table.take(only));
}

TEST(ChunkTable, the_front_is_the_oldest_chunk_also_when_the_ring_wraps) {
  ChunkTable table;
  std::uint32_t added = 0, taken = 0;
  for (int round = 0; round < 1000; ++round) {
    while (table.size() < 16) table.add(unanswered(added++));
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(table.find(table.front())->chunk.number, taken);
      ASSERT_EQ(table.take(table.front())->chunk.number, taken++);
    }
  }
  while (table.size() > 0) ASSERT_EQ(table.take(table.front())->chunk.number, taken++);
  EXPECT_EQ(taken, added);
  EXPECT_FALSE(table.take(table.front()));
}

TEST(ChunkTable, the_front_passes_over_chunks_that_were_taken_before_it) {
  ChunkTable table;
  const auto first = table.add(unanswered(0)), second = table.add(unanswered(1)),
             third = table.add(unanswered(2));
  EXPECT_TRUE(table.take(second));
  EXPECT_EQ(table.front(), first);
  EXPECT_TRUE(table.take(first));
  EXPECT_EQ(table.front(), third);
}

TEST(ChunkTable, an_abandoned_post_leaves_its_chunks_without_a_request) {
  ChunkTable table;
  headrace_prepare_v1 prepared{};
  Request request(prepared);
  std::uint64_t numbers[3];
  for (std::uint32_t i = 0; i < 3; ++i) {
    auto chunk = unanswered(i);
    chunk.request = &request;
    chunk.wire_id = i == 1 ? 8 : 7;
    numbers[i] = table.add(chunk);
  }
  EXPECT_EQ(table.abandon(9), 0u);
  EXPECT_EQ(table.abandon(7), 2u);
  EXPECT_EQ(table.abandon(7), 0u) << "each once";
  EXPECT_EQ(table.take(numbers[0])->request, nullptr);
  EXPECT_EQ(table.take(numbers[1])->request, &request);
  EXPECT_EQ(table.bytes(), 100u);
}

TEST(ChunkTable, numbers_of_a_cleared_table_find_nothing_later) {
  ChunkTable table;
  const auto before = table.add(unanswered(0));
  table.clear();
  EXPECT_EQ(table.size() + table.bytes() + table.ranges(), 0u);
  const auto after = table.add(unanswered(1));
  EXPECT_NE(after, before);
  EXPECT_FALSE(table.take(before));
  EXPECT_EQ(table.take(after)->chunk.number, 1u);
}

TEST(ChunkTable, a_random_order_gives_what_a_map_gives) {
  std::mt19937_64 random(11);
  ChunkTable table;
  std::map<std::uint64_t, Unanswered> waiting;
  std::uint64_t bytes = 0, ranges = 0, newest = 0;
  for (int step = 0; step < 100'000; ++step) {
    // The table fills and empties again and again.
    if (random() % 100 < (step / 1000 % 2 == 0 ? 60u : 40u)) {
      const auto chunk = unanswered(static_cast<std::uint32_t>(step), random() % 1000, random() % 10);
      const std::uint64_t number = table.add(chunk);
      ASSERT_GT(number, newest);
      newest = number;
      waiting[number] = chunk;
      bytes += chunk.chunk.bytes, ranges += chunk.ranges;
    } else {
      std::uint64_t number = random() % (newest + 50);  // most are used up, some have not been given out
      if (!waiting.empty() && random() % 2 == 0)
        number = std::next(waiting.begin(),
                           static_cast<long>(random() % std::min<std::size_t>(waiting.size(), 20)))
                     ->first;
      const auto known = waiting.find(number);
      const auto taken = table.take(number);
      ASSERT_EQ(taken.has_value(), known != waiting.end()) << number;
      if (!taken) continue;
      ASSERT_EQ(taken->chunk.number, known->second.chunk.number);
      bytes -= taken->chunk.bytes, ranges -= taken->ranges;
      waiting.erase(known);
    }
    ASSERT_EQ(table.size(), waiting.size());
    ASSERT_EQ(table.bytes(), bytes);
    ASSERT_EQ(table.ranges(), ranges);
    ASSERT_EQ(table.find(table.front()) == nullptr, waiting.empty());
    ASSERT_TRUE(waiting.empty() || table.front() == waiting.begin()->first);
  }
}

}  // namespace
}  // namespace headrace::transport
