// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/next_free.hpp"

#include "rail/stream/memories.hpp"

#include <gtest/gtest.h>

#include <set>

namespace headrace::rail::stream {
namespace {

TEST(NextFree, goes_round_and_passes_over_what_is_taken) {
  std::set<std::uint32_t> taken{0, 1, UINT32_MAX};
  std::uint32_t next = UINT32_MAX - 1;
  const auto is_taken = [&](std::uint32_t number) { return taken.contains(number); };
  EXPECT_EQ(next_free(next, is_taken), UINT32_MAX - 1);
  EXPECT_EQ(next_free(next, is_taken), 2U);
  taken.erase(1);
  EXPECT_EQ(next_free(next, is_taken), 3U);
}

TEST(NextFree, memories_find_numbers_also_after_as_many_as_there_are) {
  std::byte bytes[3];
  const auto at = [&](int i) { return Memory{reinterpret_cast<std::uintptr_t>(&bytes[i]), 1, {}, {}}; };
  Memories memories;
  const MemoryId first = *memories.add(at(0));
  memories.skip_to(UINT32_MAX);
  EXPECT_EQ(*memories.add(at(1)), MemoryId{UINT32_MAX});
  const auto third = memories.add(at(2));
  ASSERT_TRUE(third) << third.error().message;
  EXPECT_NE(*third, MemoryId{0});
  Memories::View view(memories);
  EXPECT_EQ(view.find({static_cast<std::uint32_t>(first), 0, 1}, Access::local), &bytes[0]);
  EXPECT_EQ(view.find({static_cast<std::uint32_t>(*third), 0, 1}, Access::local), &bytes[2]);
}

}  // namespace
}  // namespace headrace::rail::stream
