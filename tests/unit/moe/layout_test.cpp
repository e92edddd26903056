// SPDX-License-Identifier: Apache-2.0
#include "moe/layout.hpp"

#include "moe/config.hpp"
#include "moe/epochs.hpp"
#include "moe/rows.hpp"
#include "moe/spread.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace headrace::moe {
namespace {

WindowLayout some_layout(std::uint32_t ranks, std::uint32_t group_size, std::uint32_t slots) {
  return {ranks, group_size, slots, 7, {3, 48, 12}, 32};
}

struct Extent {
  std::uint64_t begin, end;
};

/// Everything that is written in a window.
std::vector<Extent> parts_of(const WindowLayout& layout) {
  std::vector<Extent> parts{{WindowLayout::bell_at, 4},
                            {WindowLayout::config_at, WindowLayout::config_at + WindowLayout::config_bytes}};
  const auto add = [&](std::uint64_t at, std::uint64_t bytes) { parts.push_back({at, at + bytes}); };
  for (std::uint32_t rank = 0; rank < layout.ranks; ++rank) {
    add(layout.words_at(rank), sizeof(PeerWords));
    for (const std::uint64_t epoch : {6, 7}) {
      add(layout.card_at(epoch, rank), sizeof(CardHead));
      add(layout.counts_at(epoch, rank), layout.experts * sizeof(std::uint32_t));
      for (std::uint64_t chunk = 0; chunk < chunks_of(layout.slots); ++chunk)
        add(layout.chunk_flag_at(epoch, rank, chunk), sizeof(std::uint64_t));
      for (std::uint64_t slot = 0; slot < layout.slots; ++slot)
        add(layout.slot_at(epoch, rank, slot), layout.record.bytes());
      for (std::uint64_t chunk = 0; chunk < chunks_of(layout.group_slots()); ++chunk)
        add(layout.partial_flag_at(epoch, rank, chunk), sizeof(std::uint64_t));
      for (std::uint64_t slot = 0; slot < layout.group_slots(); ++slot)
        add(layout.partial_at(epoch, rank, slot), layout.partial_bytes);
    }
  }
  return parts;
}

TEST(MoEWindowLayout, no_two_parts_overlap_and_all_are_inside) {
  for (const WindowLayout& layout :
       {some_layout(1, 1, 16), some_layout(3, 1, 32), some_layout(6, 2, 48), some_layout(4, 4, 16)}) {
    auto parts = parts_of(layout);
    std::ranges::sort(parts, {}, &Extent::begin);
    for (std::size_t i = 1; i < parts.size(); ++i) ASSERT_LE(parts[i - 1].end, parts[i].begin);
    EXPECT_LE(parts.back().end, layout.bytes());
  }
}

TEST(MoEWindowLayout, rows_begin_at_multiples_of_16) {
  const WindowLayout layout = some_layout(5, 1, 32);
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    for (std::uint64_t slot = 0; slot < layout.slots; ++slot) {
      EXPECT_EQ((layout.slot_at(3, rank, slot) + layout.record.row_at()) % 16, 0U);
      EXPECT_EQ((layout.slot_at(3, rank, slot) + layout.record.scales_at()) % 16, 0U);
      EXPECT_EQ(layout.partial_at(3, rank, slot) % 16, 0U);
    }
    EXPECT_EQ(layout.words_at(rank) % WindowLayout::line, 0U);
  }
}

TEST(MoEWindowLayout, follows_from_the_configuration) {
  MoEConfig config;
  config.ranks = 6, config.group_size = 2, config.experts = 13, config.top_k = 5;
  config.hidden = 32, config.scale_bytes = 4, config.combine_dtype = DType::float32, config.max_tokens = 50;
  const WindowLayout layout = window_layout(config);
  EXPECT_EQ(layout.slots, 32U);  // half of 50, in chunks
  EXPECT_EQ(layout.experts, 3U);
  EXPECT_EQ(layout.record.row_at(), 16U + 64U);  // 5 entries of 12 bytes
  EXPECT_EQ(layout.record.bytes(), 80U + 64U + 16U);
  EXPECT_EQ(layout.partial_bytes, 128U);
  EXPECT_EQ(*config.window_bytes(), layout.bytes());
}

TEST(MoETokenRange, members_send_all_tokens_once_in_whole_chunks) {
  for (const std::uint32_t members : {1U, 2U, 3U, 5U, 64U}) {
    for (std::uint64_t tokens = 0; tokens < 200; ++tokens) {
      std::uint64_t next = 0;
      for (std::uint32_t member = 0; member < members; ++member) {
        const TokenRange range = tokens_of_member(tokens, members, member);
        ASSERT_EQ(range.begin, next);
        ASSERT_TRUE(range.begin % chunk_slots == 0 || range.begin == tokens);
        ASSERT_LE(range.end - range.begin, tokens_of_member(tokens, members, 0).end);
        next = range.end;
      }
      ASSERT_EQ(next, tokens) << members << " members";
    }
  }
}

TEST(MoESpread, each_expert_is_found_on_its_rank) {
  const std::uint32_t first[] = {0, 3, 3, 3, 8, 9, 9};  // ranks 1, 2 and 5 have none
  const std::uint32_t expected[] = {0, 0, 0, 3, 3, 3, 3, 3, 4};
  for (std::uint32_t expert = 0; expert < 9; ++expert)
    EXPECT_EQ(rank_of_expert(first, 6, expert), expected[expert]) << expert;
}

TEST(MoEEpochs, a_half_is_written_again_when_its_last_use_was_taken) {
  EXPECT_TRUE(may_write(0, 1));
  EXPECT_TRUE(may_write(0, 2));
  EXPECT_FALSE(may_write(0, 3));
  EXPECT_TRUE(may_write(1, 3));
  EXPECT_TRUE(has_come(3, 3));
  EXPECT_FALSE(has_come(1, 3));
}

TEST(MoEEpochs, two_operations_may_be_under_way) {
  EXPECT_TRUE(may_begin(5, 5));
  EXPECT_TRUE(may_begin(6, 5));
  EXPECT_FALSE(may_begin(7, 5));
}

TEST(MoERows, the_next_expert_begins_at_the_alignment) {
  EXPECT_EQ(next_expert_at(0, 0, 16), 0U);
  EXPECT_EQ(next_expert_at(16, 1, 16), 32U);
  EXPECT_EQ(next_expert_at(16, 16, 16), 32U);
  EXPECT_EQ(next_expert_at(5, 3, 1), 8U);
  EXPECT_EQ(row_of_entry(32, 4, 2), 38U);
}

}  // namespace
}  // namespace headrace::moe
