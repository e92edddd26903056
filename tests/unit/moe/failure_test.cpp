// SPDX-License-Identifier: Apache-2.0
// Ranks that die, come late or send what cannot be, and calls that are wrong.
#include "moe/epochs.hpp"
#include "ranks.hpp"

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <latch>
#include <string>
#include <string_view>
#include <thread>

namespace headrace::moe {
namespace {

using namespace std::chrono_literals;

MoEConfig three_ranks(std::chrono::nanoseconds wait_limit) {
  MoEConfig config;
  config.ranks = 3, config.experts = 6, config.top_k = 2, config.hidden = 16, config.max_tokens = 40;
  config.dtype = config.combine_dtype = DType::float32;
  config.wait_limit = wait_limit;
  return config;
}

/// The errors by which a rank may learn that rank 2 is lost: of its own wait, or after the vote of another.
void expect_told(const Error& error, int number, Code code, std::string_view sentence) {
  const std::string voted = fmt::format(
      "rank 2 was left out by another rank: rank {} waited for its counts in dispatch 1 (expected 1, seen 0)",
      number);
  const bool is_told = error.message == voted;
  EXPECT_EQ(error.code, is_told ? Code::peer_lost : code);
  if (!is_told) {
    EXPECT_EQ(error.message, sentence);
  }
}

TEST(MoEFailures, one_that_is_late_is_named_and_left_out_and_the_others_go_on) {
  const MoEConfig config = three_ranks(1s);  // the others are never late, also on a busy machine
  Ranks ranks(config);
  const Step first(config, 0b011, 1), second(config, 0b011, 2);
  std::atomic<int> timed_out = 0;
  std::latch others(2);
  ranks.run([&](int number) {
    if (number == 2) return;
    others.arrive_and_wait();
    Rank& rank = ranks[number];
    Routing routing = rank.new_routing();
    const auto late = first.dispatch(rank, ranks.of(number), routing);
    ASSERT_FALSE(late);
    if (late.code() == Code::timed_out) ++timed_out;
    expect_told(late.error(), number, Code::timed_out,
                fmt::format("rank {} waited for counts of rank 2 in dispatch 1: expected 1, seen 0", number));
    EXPECT_EQ(rank.active(), 0b011U);
    ASSERT_TRUE(rank.failure());
    EXPECT_EQ(rank.failure()->waiter, number);
    EXPECT_EQ(rank.failure()->peer, 2);
    EXPECT_EQ(rank.failure()->operation, "dispatch");
    EXPECT_TRUE(first.combine(rank, number, routing));
    EXPECT_TRUE(second.dispatch(rank, ranks.of(number), routing));
    EXPECT_TRUE(second.combine(rank, number, routing));
  });
  EXPECT_GE(timed_out, 1);
}

TEST(MoEFailures, one_that_is_known_to_be_dead_is_not_waited_for) {
  const MoEConfig config = three_ranks(1min);
  Ranks ranks(config);
  ranks.lose(2);
  const Step step(config, 0b011, 3);
  ranks.run([&](int number) {
    if (number == 2) return;
    Routing routing = ranks[number].new_routing();
    const auto lost = step.dispatch(ranks[number], ranks.of(number), routing);
    ASSERT_FALSE(lost);
    expect_told(
        lost.error(), number, Code::peer_lost,
        fmt::format("rank 2 is gone: rank {} waited for its counts in dispatch 1 (expected 1, seen 0)",
                    number));
    EXPECT_TRUE(step.combine(ranks[number], number, routing));
  });
}

/// Rank 1 does not know that rank 2 is dead, and waits for a minute.
TEST(MoEFailures, survivors_agree_at_once_though_one_alone_knows) {
  const MoEConfig config = three_ranks(1min);
  Ranks ranks(config);
  ranks.lose(2, 0);
  const Step step(config, 0b011, 3);
  ranks.run([&](int number) {
    if (number == 2) return;
    Routing routing = ranks[number].new_routing();
    const auto lost = step.dispatch(ranks[number], ranks.of(number), routing);
    ASSERT_EQ(lost.code(), Code::peer_lost);
    EXPECT_EQ(ranks[number].failure()->voted, number == 1);
    EXPECT_EQ(ranks[number].active(), 0b011U);
    EXPECT_TRUE(step.combine(ranks[number], number, routing));
  });
}

/// Each of two ranks is taken for dead by the other one.
TEST(MoEFailures, of_two_ranks_that_miss_each_other_one_goes_on) {
  MoEConfig config = three_ranks(1min);
  config.ranks = 2;
  for (int round = 0; round < 20; ++round) {
    Ranks ranks(config);
    ranks.lose(0), ranks.lose(1);
    std::atomic<int> lost = 0, canceled = 0;
    ranks.run([&](int number) {
      Routing routing = ranks[number].new_routing();
      Output out(ranks.of(number));
      const Result<void> done = ranks[number].dispatch({}, out.argument(), routing);
      if (done.code() == Code::peer_lost) ++lost;
      if (done.code() == Code::canceled) ++canceled;
    });
    if (lost + canceled == 0) continue;  // both had sent before the other one waited
    EXPECT_EQ(lost, 1);
    EXPECT_LE(canceled, 1);
    EXPECT_EQ(std::popcount(ranks[0].active()), 1);
    EXPECT_EQ(ranks[0].active(), ranks[1].active());
  }
}

TEST(MoEFailures, what_a_dead_rank_had_sent_still_counts) {
  const MoEConfig config = three_ranks(1min);
  Ranks ranks(config);
  const Step step(config, 0b111, 4);
  Routing of_dead = ranks[2].new_routing();
  ASSERT_TRUE(ranks[2].dispatch_send(argument_of(step.inputs[2]), of_dead));
  ranks.lose(2);
  ranks.run([&](int number) {
    if (number == 2) return;
    Routing routing = ranks[number].new_routing();
    EXPECT_TRUE(step.dispatch(ranks[number], ranks.of(number), routing));
  });
}

TEST(MoEFailures, one_that_was_left_out_hears_by_whom_while_it_waits) {
  const MoEConfig config = three_ranks(1min);
  Ranks ranks(config);
  Routing routing = ranks[2].new_routing(), of_other = ranks[1].new_routing();
  ASSERT_TRUE(ranks[2].dispatch_send({}, routing));
  ASSERT_TRUE(ranks[1].dispatch_send({}, of_other));
  Output out(ranks.of(2));
  std::jthread other([&] { EXPECT_TRUE(ranks[0].set_active(0b011)); });
  const auto heard = ranks[2].dispatch_receive(out.argument(), routing);
  ASSERT_EQ(heard.code(), Code::canceled);
  EXPECT_TRUE(heard.error().message.starts_with("rank 0 has left rank 2 out, as rank 2 sees in dispatch 1"));
}

TEST(MoEFailures, one_that_was_left_out_does_nothing_more_and_says_so_each_time) {
  const MoEConfig config = three_ranks(1min);
  Ranks ranks(config);
  ASSERT_TRUE(ranks[0].set_active(0b011));
  EXPECT_EQ(ranks[1].active(), 0b011U);
  Rank& rank = ranks[2];
  Routing routing = rank.new_routing(), second = rank.new_routing();
  Output out(ranks.of(2));
  const Bytes results(static_cast<std::size_t>(ranks.of(2).output_rows() * config.combine_row_bytes()));
  const Result<void> later[] = {
      rank.dispatch({}, out.argument(), routing),
      rank.combine({.rows = results.data()}, {}, routing),
      rank.dispatch_send({}, second),
      rank.dispatch_receive(out.argument(), second),
      rank.combine_send({.rows = results.data()}, routing),
      rank.combine_receive({}, routing),
      rank.set_active(0b100),
  };
  for (const Result<void>& again : later) {
    ASSERT_EQ(again.code(), Code::canceled);
    EXPECT_EQ(
        again.error().message,
        "rank 0 has left rank 2 out, as rank 2 sees in dispatch 1: take it back with regroup, or open a "
        "new MoE on all ranks");
  }
  EXPECT_EQ(ranks[0].active(), 0b011U);  // the vote of a rank that is out does not count
}

TEST(MoEFailures, a_caller_that_is_interrupted_ends_its_wait_and_nobody_waits_for_it) {
  MoEConfig config = three_ranks(1min);
  config.ranks = 2;
  std::atomic<bool> asked = false;
  config.interrupted = [&asked] { return asked.exchange(true) || true; };
  Ranks ranks(config);
  Routing routing = ranks[0].new_routing();
  Output out(ranks.of(0));
  const auto ended = ranks[0].dispatch({}, out.argument(), routing);
  ASSERT_EQ(ended.code(), Code::canceled);
  EXPECT_EQ(ended.error().message, "rank 0 was interrupted by its caller in dispatch 1");
  EXPECT_TRUE(asked);
  EXPECT_EQ(ranks[0].dispatch({}, out.argument(), routing).code(), Code::canceled);
  EXPECT_EQ(ranks[1].active(), 0b10U);
}

TEST(MoEFailures, ranks_that_are_left_out_by_all_are_skipped) {
  const MoEConfig config = three_ranks(1min);
  Ranks ranks(config);
  const Step step(config, 0b101, 5);
  ranks.run([&](int number) {
    if (number == 1) return;
    EXPECT_TRUE(ranks[number].set_active(0b101));
    Routing routing = ranks[number].new_routing();
    EXPECT_TRUE(step.dispatch(ranks[number], ranks.of(number), routing));
    EXPECT_TRUE(step.combine(ranks[number], number, routing));
  });
}

TEST(MoEFailures, nobody_waits_for_sums_of_records_that_never_came) {
  MoEConfig config = three_ranks(1min);
  config.ranks = 4, config.group_size = 2;
  Ranks ranks(config);
  ranks.lose(1);  // of the group of rank 0, whose tokens it sends in part
  const Step step(config, 0b1101, 6);
  ranks.run([&](int number) {
    if (number == 1) return;
    Rank& rank = ranks[number];
    Routing routing = rank.new_routing();
    EXPECT_EQ(step.dispatch(rank, ranks.of(number), routing).code(), Code::peer_lost);  // seen or told
    const auto at = static_cast<std::size_t>(number);
    Bytes got(step.sums[at].size());
    EXPECT_TRUE(rank.combine({.rows = step.results[at].data()}, {.rows = got.data()}, routing));
    // Tokens that rank 1 was to send have no sum; rank 0 has those of the first part.
    const std::size_t whole = number == 0 ? 32 * 64 : got.size();  // 32 rows of 64 bytes
    EXPECT_EQ(std::memcmp(got.data(), step.sums[at].data(), whole), 0);
    for (std::size_t i = whole; i < got.size(); ++i) ASSERT_EQ(got[i], std::byte{0});
  });
}

/// Rank 1 as a peer that writes what it likes. Rank 0 has a window with its card for dispatch 1.
class LyingPeer : public testing::Test {
 protected:
  LyingPeer() : config_(config()), layout_(window_layout(config_)), ranks_(config_) {
    EXPECT_TRUE(ranks_[0].dispatch_send({}, routing_));
  }
  static MoEConfig config() {
    MoEConfig config = three_ranks(1min);
    config.ranks = 2, config.experts = 2;
    return config;
  }
  void card(std::uint64_t records, std::uint32_t count) {
    const Window window = ranks_.window(0);
    std::memcpy(window.at(layout_.card_at(1, 1) + offsetof(CardHead, records)), &records, sizeof records);
    std::memcpy(window.at(layout_.counts_at(1, 1)), &count, sizeof count);
    window.tell(layout_.card_at(1, 1), 1);
  }
  void record(const RecordHead& head, const Entry& entry) {
    const Window window = ranks_.window(0);
    std::memcpy(window.at(layout_.slot_at(1, 1, 0)), &head, sizeof head);
    std::memcpy(window.at(layout_.slot_at(1, 1, 0) + layout_.record.entries_at()), &entry, sizeof entry);
    window.tell(layout_.chunk_flag_at(1, 1, 0), 1);
  }
  std::string receive() {
    Output out(ranks_.of(0));
    const auto received = ranks_[0].dispatch_receive(out.argument(), routing_);
    EXPECT_EQ(received.code(), Code::corrupt);
    EXPECT_EQ(ranks_[0].active(), 0b01U);
    return received ? "" : received.error().message;
  }
  MoEConfig config_;
  WindowLayout layout_;
  Ranks ranks_;
  Routing routing_{ranks_[0].new_routing()};
};

TEST_F(LyingPeer, more_records_than_slots_are_refused) {
  card(1'000'000, 1);
  EXPECT_EQ(receive(),
            "rank 0 got counts from rank 1 in dispatch 1 that cannot be: 1000000 where fewer than 49 was "
            "expected");
}
TEST_F(LyingPeer, more_entries_than_records_have_are_refused) {
  card(2, 5);
  EXPECT_EQ(receive(),
            "rank 0 got counts from rank 1 in dispatch 1 that cannot be: 5 where fewer than 5 was expected");
}
TEST_F(LyingPeer, a_record_with_too_many_entries_is_refused) {
  card(1, 1);
  record({0, 33, {}}, {});
  EXPECT_EQ(receive(),
            "rank 0 got rows from rank 1 in dispatch 1 that cannot be: 33 where fewer than 3 was expected");
}
TEST_F(LyingPeer, an_entry_beyond_the_counts_is_refused) {
  card(1, 1);
  record({0, 1, {}}, {0, 1, 1.0F});
  EXPECT_EQ(receive(),
            "rank 0 got rows from rank 1 in dispatch 1 that cannot be: 1 where fewer than 1 was expected");
}
TEST_F(LyingPeer, an_expert_of_another_rank_is_refused) {
  card(1, 1);
  record({0, 1, {}}, {7, 0, 1.0F});
  EXPECT_EQ(receive(),
            "rank 0 got rows from rank 1 in dispatch 1 that cannot be: 7 where fewer than 1 was expected");
}

/// A number that is often near what is expected.
std::uint64_t some_number(Random& random) {
  constexpr std::uint64_t edges[] = {0, 1, 2, 3, 16, 48, 49, 1U << 31, ~std::uint32_t{0}, ~std::uint64_t{0}};
  return below(random, 2) == 0 ? edges[below(random, std::ssize(edges))]
                               : static_cast<std::uint64_t>(below(random, 50));
}

/// A dispatch of rank 1 to rank 0 in which any number may be any other.
class AnyDispatch {
 public:
  AnyDispatch(Random& random, const Window& window)
      : random_(random), window_(window), layout_(window.layout()) {}

  void write() {
    write_card();
    for (std::uint64_t slot = 0; slot < layout_.slots; ++slot) write_record(layout_.slot_at(1, 1, slot));
    for (std::uint64_t chunk = 0; chunk < chunks_of(layout_.slots); ++chunk)
      window_.tell(layout_.chunk_flag_at(1, 1, chunk), 1);
    window_.tell(layout_.card_at(1, 1), 1);
  }

 private:
  /// Most often less than `end`, once in `times` anything.
  std::uint32_t number(std::uint32_t end, int times) {
    return static_cast<std::uint32_t>(below(random_, times) == 0 ? some_number(random_) : random_() % end);
  }
  void put(std::uint64_t at, auto value) const { std::memcpy(window_.at(at), &value, sizeof value); }
  void write_card() {
    const std::uint64_t records = below(random_, 4) == 0 ? some_number(random_) : 1 + random_() % 4;
    put(layout_.card_at(1, 1) + offsetof(CardHead, records), records);
    for (std::uint64_t expert = 0; expert < layout_.experts; ++expert)
      put(layout_.counts_at(1, 1) + expert * sizeof(std::uint32_t), number(5, 20));
  }
  void write_record(std::uint64_t at) {
    put(at, RecordHead{number(50, 10), below(random_, 20) == 0 ? number(1, 1) : 1 + number(2, 1000), {}});
    for (std::uint64_t entry = 0; entry < layout_.record.top_k; ++entry)
      put(at + layout_.record.entries_at() + entry * sizeof(Entry), Entry{number(2, 10), number(1, 10), 1});
  }

  Random& random_;
  const Window window_;
  const WindowLayout layout_;
};

/// Returns whether it was taken.
bool take_any_dispatch(Random& random, const MoEConfig& config) {
  Ranks ranks(config);
  Routing routing = ranks[0].new_routing();
  EXPECT_TRUE(ranks[0].dispatch_send({}, routing));
  AnyDispatch(random, ranks.window(0)).write();
  Output out(ranks.of(0));
  const auto received = ranks[0].dispatch_receive(out.argument(), routing);
  EXPECT_TRUE(received || received.code() == Code::corrupt) << received.error().message;
  const Bytes results(static_cast<std::size_t>(config.output_rows() * config.combine_row_bytes()));
  EXPECT_TRUE(ranks[0].combine_send({.rows = results.data()}, routing));
  return received.ok();
}

TEST(LyingPeers, with_any_numbers_lead_to_no_memory_but_the_output) {
  MoEConfig config = three_ranks(1min);
  config.ranks = 2, config.experts = 4, config.row_budget = 20;
  Random random(11);
  int taken = 0;
  for (int round = 0; round < 400; ++round) {
    config.layout = static_cast<MoELayout>(below(random, 3));
    if (take_any_dispatch(random, config)) ++taken;
  }
  EXPECT_GT(taken, 20);
  EXPECT_LT(taken, 380);
}

/// One rank alone.
class WrongCalls : public testing::Test {
 protected:
  WrongCalls() : config_(config()), ranks_(config_), rank_(ranks_[0]), routing_(rank_.new_routing()) {
    tokens_.count = 2;
    tokens_.rows = rows_;
    tokens_.experts = experts_;
    out_.rows = rows_;
  }
  static MoEConfig config() {
    MoEConfig config;
    config.experts = 4, config.top_k = 1, config.hidden = 8, config.max_tokens = 4;
    return config;
  }
  static void refused(const Result<void>& result, std::string_view sentence) {
    ASSERT_FALSE(result) << sentence;
    EXPECT_EQ(result.code(), Code::invalid_argument);
    EXPECT_EQ(result.error().message, sentence);
  }
  MoEConfig config_;
  Ranks ranks_;
  Rank& rank_;
  Routing routing_;
  std::byte rows_[4 * 16] = {};
  std::int64_t experts_[4] = {0, 1, 2, 3};
  MoETokens tokens_;
  MoERows out_;
};

TEST_F(WrongCalls, of_dispatch_say_what_is_wrong_and_send_nothing) {
  MoETokens wrong = tokens_;
  wrong.count = 5;
  refused(rank_.dispatch(wrong, out_, routing_), "5 tokens are given, expected 0 to max_tokens = 4");
  wrong = tokens_, wrong.rows = nullptr;
  refused(rank_.dispatch(wrong, out_, routing_), "2 tokens are given, and no rows");
  wrong = tokens_, wrong.scales = rows_;
  refused(rank_.dispatch(wrong, out_, routing_),
          "scales are given, and scale_bytes is 0: give scales if it is not 0");
  wrong = tokens_, wrong.row_stride = 8;
  refused(rank_.dispatch(wrong, out_, routing_),
          "row_stride is 8, and a row has 16 bytes: expected 0, or at least that");
  wrong = tokens_, wrong.experts = nullptr;
  refused(rank_.dispatch(wrong, out_, routing_),
          "no experts are given, and the routing has none: dispatch with experts first");
  wrong = tokens_, wrong.experts_dtype = DType::int16;
  refused(rank_.dispatch(wrong, out_, routing_), "experts are int16, expected int64, int32 or uint32");
  experts_[1] = 4;
  refused(rank_.dispatch(tokens_, out_, routing_), "token 1 names expert 4 as its entry 0: expected -1 to 3");
  experts_[1] = -2;
  refused(rank_.dispatch(tokens_, out_, routing_),
          "token 1 names expert -2 as its entry 0: expected -1 to 3");
  experts_[1] = 1;
  refused(rank_.dispatch(tokens_, {}, routing_), "no memory for rows is given, expected 4 rows of 16 bytes");
  MoERows few = out_;
  few.row_count = 3;
  refused(rank_.dispatch(tokens_, few, routing_), "there is memory for 3 rows, expected output_rows = 4");
  few.row_count = 4;
  EXPECT_TRUE(rank_.dispatch(tokens_, few, routing_));
  EXPECT_TRUE(rank_.dispatch(tokens_, out_, routing_));
}

TEST_F(WrongCalls, a_third_dispatch_under_way_is_refused) {
  Routing second = rank_.new_routing(), third = rank_.new_routing();
  EXPECT_TRUE(rank_.dispatch_send(tokens_, routing_));
  refused(rank_.dispatch_send(tokens_, routing_),
          "the routing is in use by dispatch 1: receive that first, or give another one");
  EXPECT_TRUE(rank_.dispatch_send(tokens_, second));
  refused(rank_.dispatch_send(tokens_, third),
          "dispatch 3 cannot begin: 2 are under way, the most that a window holds. Receive dispatch 1 first");
  refused(
      rank_.dispatch_receive(out_, second),
      "the routing is not that of dispatch 1, which is received next: give the one that it was sent with");
  refused(rank_.dispatch(tokens_, out_, third),
          "dispatch 1 is under way: receive it before a whole dispatch");
  EXPECT_TRUE(rank_.dispatch_receive(out_, routing_));
  EXPECT_TRUE(rank_.dispatch_receive(out_, second));
  refused(rank_.dispatch_receive(out_, second), "no dispatch is under way: send one first");
}

TEST_F(WrongCalls, a_combine_without_a_dispatch_is_refused) {
  std::byte sums[2 * 16];
  refused(rank_.combine({.rows = rows_}, {.rows = sums}, routing_),
          "the routing has no dispatch that was received: dispatch with it first");
  EXPECT_TRUE(rank_.dispatch(tokens_, out_, routing_));
  refused(rank_.combine({.rows = nullptr}, {.rows = sums}, routing_),
          "no rows of results are given, expected 4 rows of 16 bytes");
  refused(rank_.combine({.rows = rows_}, {.rows = nullptr}, routing_),
          "no memory for sums is given, expected 2 rows of 16 bytes");
  EXPECT_TRUE(rank_.combine_send({.rows = rows_}, routing_));
  refused(rank_.dispatch(tokens_, out_, routing_),
          "the routing is in use by combine 1: receive that first, or give another one");
  EXPECT_TRUE(rank_.combine_receive({.rows = sums}, routing_));
}

TEST_F(WrongCalls, a_routing_may_be_used_again_with_as_many_tokens) {
  EXPECT_TRUE(rank_.dispatch(tokens_, out_, routing_));
  MoETokens again = tokens_;
  again.experts = nullptr;
  std::byte other[2 * 16];
  std::memset(other, 7, sizeof other);
  again.rows = other;
  EXPECT_TRUE(rank_.dispatch(again, out_, routing_));
  EXPECT_EQ(std::memcmp(rows_, other, sizeof other), 0);
  again.count = 1;
  refused(rank_.dispatch(again, out_, routing_),
          "1 tokens are given, and the routing has 2: give as many, or experts");
}

}  // namespace
}  // namespace headrace::moe
