// SPDX-License-Identifier: Apache-2.0
#include "moe/signal.hpp"

#include "moe/nodes.hpp"

#include <gtest/gtest.h>

namespace headrace::moe {
namespace {

TEST(MoESignals, come_as_they_left) {
  const Chunks chunks{.epoch = 0x123456, .first = 0x1ffff, .count = 0xfff};
  const Immediate packed = Signal{Signal::Kind::missing, 63, chunks.payload()}.packed();
  EXPECT_LT(packed.scope, std::uint32_t{1} << 31);  // a fabric keeps the rest
  const Signal back = Signal::of(packed);
  EXPECT_EQ(back.kind, Signal::Kind::missing);
  EXPECT_EQ(back.rank, 63U);
  const Chunks got = Chunks::of(back.payload, 0x123400);
  EXPECT_EQ(got.epoch, chunks.epoch);
  EXPECT_EQ(got.first, chunks.first);
  EXPECT_EQ(got.count, chunks.count);
}

TEST(MoESignals, name_the_epoch_next_to_that_of_their_reader) {
  constexpr std::uint64_t all = std::uint64_t{1} << Chunks::epoch_bits;
  for (const std::uint64_t now : {std::uint64_t{1}, all - 1, all, all + 1, 5 * all - 2, 5 * all + 7})
    for (const std::uint64_t ahead : {0, 1, 2, 1000})
      for (const bool later : {false, true}) {
        if (!later && ahead > now) continue;
        const std::uint64_t epoch = later ? now + ahead : now - ahead;
        EXPECT_EQ(Chunks::of(Chunks{epoch, 0, 0}.payload(), now).epoch, epoch);
      }
}

TEST(MoESignals, votes_come_as_they_left) {
  const Vote back = Vote::of(Vote{.number = 0x1abcd, .against = 63, .counted = true}.bits());
  EXPECT_EQ(back.number, 0xabcdU);
  EXPECT_EQ(back.against, 63U);
  EXPECT_TRUE(back.counted);
}

TEST(MoESignals, of_a_group_know_their_group_by_its_low_bits) {
  constexpr std::uint64_t group = (std::uint64_t{1} << 40) + 12345;
  const std::uint64_t payload = OfGroup{group, 0x80000001}.payload();
  EXPECT_EQ(Signal::of(Signal{Signal::Kind::votes_high, 3, payload}.packed()).payload, payload);
  EXPECT_EQ(OfGroup::bits_of(payload), 0x80000001U);
  EXPECT_TRUE(OfGroup::is_of(payload, group));
  EXPECT_FALSE(OfGroup::is_of(payload, group + 2));
  EXPECT_FALSE(OfGroup::is_of(payload, 0));
}

TEST(MoENodeShapes, have_ranks_in_a_row_and_a_last_node_that_may_be_shorter) {
  const Nodes nodes{.ranks = 5, .per_node = 2};
  EXPECT_EQ(nodes.count(), 3U);
  EXPECT_TRUE(nodes.are_near(2, 3));
  EXPECT_FALSE(nodes.are_near(1, 2));
  EXPECT_EQ(nodes.mask_of(0), 0b00011U);
  EXPECT_EQ(nodes.mask_of(1), 0b01100U);
  EXPECT_EQ(nodes.mask_of(2), 0b10000U);
  EXPECT_EQ((Nodes{.ranks = 64, .per_node = 64}).mask_of(0), ~Mask{0});
  MoEConfig config;
  config.ranks = 3;
  EXPECT_EQ(Nodes::of(config).count(), 1U);
}

}  // namespace
}  // namespace headrace::moe
