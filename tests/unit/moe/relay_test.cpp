// SPDX-License-Identifier: Apache-2.0
// Rows that cross to a node once, and what a rank refuses to forward.
#include "moe/relay_layout.hpp"

#include "ranks.hpp"

#include <cstring>
#include <thread>

namespace headrace::moe {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t tokens_each = 20;

MoEConfig two_nodes_of_two() {
  MoEConfig config;
  config.ranks = 4, config.ranks_per_node = 2, config.experts = 4, config.top_k = 2, config.hidden = 16;
  config.dtype = config.combine_dtype = DType::float32;
  config.max_tokens = tokens_each, config.wait_limit = 1min;
  return config;
}

RelayLayout relay_layout(const MoEConfig& config) {
  return RelayLayout::of(Nodes::of(config), window_layout(config));
}

TEST(MoERelays, bring_a_row_for_two_ranks_that_has_crossed_once) {
  const MoEConfig config = two_nodes_of_two();
  const WindowLayout layout = window_layout(config);
  const RelayLayout relay = relay_layout(config);
  Ranks ranks(config);
  ranks.run([&](int number) {
    Random random(1);
    Tokens tokens = random_tokens(random, config, tokens_each, Choice::uniform);
    for (std::size_t i = 0; i < tokens.experts.size(); ++i)
      tokens.experts[i] = static_cast<std::int64_t>((number < 2 ? 2 : 0) + i % 2);  // both of the other node
    Routing routing = ranks[number].new_routing();
    Output out(ranks.of(number));
    ASSERT_TRUE(ranks[number].dispatch(argument_of(tokens), out.argument(), routing));
  });
  std::uint64_t records = 0;
  std::memcpy(&records, ranks.window(2).at(relay.card_at(1, 0) + offsetof(CardHead, records)),
              sizeof records);
  EXPECT_EQ(records, tokens_each);
  for (const int target : {2, 3})
    for (const std::uint64_t chunk : {0, 1}) {
      EXPECT_EQ(ranks.window(target).load(relay.forwarded_flag_at(1, 0, chunk)), 1U);
      EXPECT_EQ(ranks.window(target).load(layout.chunk_flag_at(1, 0, chunk)), 0U);
    }
}

/// No other rank has begun: a source needs no counts of others to know the places of its rows.
TEST(MoENodeRows, all_leave_before_the_counts_of_any_other_rank_are_known) {
  for (const int per_node : {1, 2}) {
    MoEConfig config = two_nodes_of_two();
    config.ranks_per_node = per_node;
    Ranks ranks(config);
    Random random(1);
    Tokens tokens = random_tokens(random, config, tokens_each, Choice::uniform);
    for (std::size_t i = 0; i < tokens.experts.size(); ++i)
      tokens.experts[i] = static_cast<std::int64_t>(2 + i % 2);  // on the other node, or on two
    Routing routing = ranks[0].new_routing();
    ASSERT_TRUE(ranks[0].dispatch_send(argument_of(tokens), routing));
    const WindowLayout layout = window_layout(config);
    const RelayLayout relay = relay_layout(config);
    for (const std::uint64_t chunk : {0, 1}) {
      const std::uint64_t flag =
          per_node == 1 ? layout.chunk_flag_at(1, 0, chunk) : relay.flag_at(1, 0, chunk);
      while (ranks.window(2).load(flag) != 1) std::this_thread::yield();
      const std::uint64_t slot = chunk * chunk_slots;
      const std::byte* const row =
          ranks.window(2).at(per_node == 1 ? layout.slot_at(1, 0, slot) + layout.record.row_at()
                                           : relay.slot_at(1, 0, slot) + relay.row_at());
      EXPECT_EQ(
          std::memcmp(row, tokens.rows.data() + slot * layout.record.row_bytes, layout.record.row_bytes), 0);
    }
  }
}

/// What rank 2 has sent to rank 0, to be forwarded.
struct Sent {
  std::uint64_t records = 1;
  std::uint32_t entries = 1;
  RelayEntry entry = {};
};

void expect_refused(const Sent& sent, const std::string& sentence) {
  const MoEConfig config = two_nodes_of_two();
  const RelayLayout relay = relay_layout(config);
  Ranks ranks(config);
  const Window window = ranks.window(0);
  const std::uint64_t card = relay.card_at(1, 1);
  const RecordHead head{0, sent.entries, {}};
  std::byte* const record = window.at(relay.slot_at(1, 1, 0));
  std::memcpy(window.at(card + offsetof(CardHead, records)), &sent.records, sizeof sent.records);
  std::memcpy(record, &head, sizeof head);
  std::memcpy(record + RelayLayout::entries_at(), &sent.entry, sizeof sent.entry);
  window.tell(relay.flag_at(1, 1, 0), 1);
  window.tell(card, 1);
  for (const int other : {1, 3}) {  // they have sent, and wait for nothing
    Routing routing = ranks[other].new_routing();
    ASSERT_TRUE(ranks[other].dispatch_send({}, routing));
  }
  Routing routing = ranks[0].new_routing();
  Output out(ranks.of(0));
  const auto refused = ranks[0].dispatch({}, out.argument(), routing);
  ASSERT_EQ(refused.code(), Code::corrupt);
  EXPECT_EQ(refused.error().message, "rank 0 got rows from rank 2 in dispatch 1 that cannot be: " + sentence);
  EXPECT_EQ(ranks[0].active(), 0b1011U);
}

TEST(MoERelays, refuse_numbers_that_cannot_be) {
  expect_refused({.records = 33}, "33 where fewer than 33 was expected");
  expect_refused({.entries = 0}, "0 where fewer than 3 was expected");
  expect_refused({.entries = 3}, "3 where fewer than 3 was expected");
  expect_refused({.entry = {.rank = 2, .slot = 0, .entry = {}}}, "2 where fewer than 4 was expected");
  expect_refused({.entry = {.rank = 9, .slot = 0, .entry = {}}}, "9 where fewer than 4 was expected");
  expect_refused({.entry = {.rank = 1, .slot = 32, .entry = {}}}, "32 where fewer than 32 was expected");
}

TEST(MoERelayLayout, has_room_behind_the_window_only_if_there_are_nodes_of_several_ranks) {
  MoEConfig config = two_nodes_of_two();
  const WindowLayout layout = window_layout(config);
  EXPECT_GT(relay_layout(config).bytes(), layout.bytes());
  EXPECT_EQ(*config.window_bytes(), relay_layout(config).bytes());
  for (const int per_node : {0, 1, 4}) {
    config.ranks_per_node = per_node;
    EXPECT_EQ(*config.window_bytes(), layout.bytes());
  }
}

TEST(MoERelayLayout, has_parts_that_lie_apart) {
  const RelayLayout relay = relay_layout(two_nodes_of_two());
  const std::uint64_t slots = relay.window.slots;
  EXPECT_EQ(relay.card_at(2, 0), relay.window.bytes());
  EXPECT_LE(relay.slot_at(2, 0, slots), relay.card_at(2, 1));
  EXPECT_LE(relay.slot_at(2, 1, slots), relay.card_at(1, 0));
  EXPECT_LE(relay.slot_at(1, 1, slots), relay.forwarded_flag_at(2, 0, 0));
  EXPECT_LE(relay.forwarded_slot_at(2, 3, slots), relay.forwarded_flag_at(1, 0, 0));
  EXPECT_LE(relay.forwarded_slot_at(1, 3, slots), relay.bytes());
}

}  // namespace
}  // namespace headrace::moe
