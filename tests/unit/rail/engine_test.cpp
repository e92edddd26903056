// SPDX-License-Identifier: Apache-2.0
#include "rail/engine.hpp"

#include "unit/rail/two_engines.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using namespace test_engines;

const PostPlan counted_once{Spread::free, 0, CountedAt{}};
const LinkOptions small_chunks{.chunk_bytes = 4096, .rail_bytes = 64 << 10};

TEST(RailEngine, a_write_goes_over_all_rails_and_is_counted_once) {
  TwoEngines engines(4, 4, 1, small_chunks);
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return engines.sides[0].link->live_rails() == 4; }));
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(25, 4000, counted_once).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  EXPECT_EQ(engines.sides[1].counts.at(0), 1U);
  writes.check_quiet();
}

TEST(RailEngine, an_immediate_without_bytes_is_counted_as_often_as_it_says) {
  TwoEngines engines(2, 2);
  engines.connect();
  Writes writes(engines, 4096);
  ASSERT_TRUE(writes.post(0, 0, counted_once, 7).ok());
  EXPECT_FALSE(writes.all_ended()) << "the peer does not have it yet";
  ASSERT_TRUE(engines.until([&] { return writes.all_counted() && writes.all_ended(); }));
  EXPECT_EQ(engines.sides[1].counts.at(0), 7U);
}

TEST(RailEngine, a_write_is_counted_by_page_and_by_shard) {
  TwoEngines engines(2, 3, 1, small_chunks);
  engines.connect();
  Writes writes(engines, 2 << 20);
  ASSERT_TRUE(writes.post(300, 100, {Spread::free, 0, CountedAt{}, CountBy::page}, 2).ok());
  ASSERT_TRUE(writes.post(10, 4096, {Spread::free, 0, CountedAt{}, CountBy::shard}).ok());
  ASSERT_TRUE(writes.post(3, 10, {Spread::pinned, 1, CountedAt{}, CountBy::shard, 7}).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  EXPECT_EQ(engines.sides[1].counts.at(0), 600U);
  EXPECT_EQ(engines.sides[1].counts.at(1), 3U);
  EXPECT_EQ(engines.sides[1].counts.at(2), 7U);
  EXPECT_EQ(engines.sides[0].link->rails(), engines.sides[1].link->rails());
}

TEST(RailEngine, a_count_above_32_bits_is_refused) {
  TwoEngines engines(1, 1);
  engines.connect();
  Writes writes(engines, 1 << 20);
  const PostPlan by_page{Spread::free, 0, CountedAt{}, CountBy::page};
  EXPECT_EQ(writes.post(2, 1, by_page, 1U << 31).code, Code::invalid_argument);
  EXPECT_TRUE(writes.post(2, 1, by_page, (1U << 31) - 1).ok());
}

TEST(RailEngine, a_link_that_is_closed_ends_its_requests_and_is_lost) {
  TwoEngines engines(2, 2);
  engines.connect();
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(25, 4000, counted_once).ok());
  ASSERT_TRUE(writes.post(0, 0, counted_once).ok());
  EXPECT_TRUE(engines.sides[0].link->sends());
  engines.sides[0].link->close("the test closes it", engines.net.now_ns());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && engines.sides[0].link->lost(); }));
  for (const auto& [request, status] : engines.sides[0].ends) EXPECT_EQ(status.code, Code::peer_lost);
  EXPECT_NE(engines.sides[0].why_lost.find("the test closes it"), std::string::npos);
  EXPECT_FALSE(engines.sides[0].link->sends());
}

TEST(RailEngine, more_chunks_than_marks_are_settled) {
  TwoEngines engines(2, 2, 1, small_chunks);
  engines.connect();
  Writes writes(engines, 2 << 20);
  ASSERT_TRUE(writes.post(most_marked_chunks + 1, 4096, counted_once).ok());
  ASSERT_TRUE(writes.post(most_marked_chunks, 4096, counted_once).ok());
  ASSERT_TRUE(writes.post(3 * most_marked_chunks, 4096, counted_once).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  writes.check_quiet();
}

TEST(RailEngine, unequal_numbers_of_NICs_are_all_used) {
  for (const auto& [ours, theirs] : {std::pair(1U, 3U), std::pair(3U, 1U), std::pair(2U, 3U)}) {
    TwoEngines engines(ours, theirs, 1, small_chunks);
    engines.connect();
    ASSERT_TRUE(engines.until([&] { return engines.sides[0].link->live_rails() == 3; }));
    Writes writes(engines, 1 << 20);
    ASSERT_TRUE(writes.post(50, 4096, counted_once).ok());
    ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  }
}

TEST(RailEngine, more_requests_than_the_window_wait_for_their_numbers) {
  TwoEngines engines(2, 2, 5, small_chunks);
  engines.net.set_faults({1us, 300us, 1ms, 0, 0});
  engines.connect();
  Writes writes(engines, 8 << 20);
  for (int i = 0; i < 1200; ++i) ASSERT_TRUE(writes.post(1, 1 + i % 100, counted_once).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  writes.check_quiet();
  EXPECT_TRUE(
      engines.until([&] { return engines.sides[0].link->held() + engines.sides[1].link->held() == 0; }));
  EXPECT_EQ(engines.net.pending(), 0U);
}

TEST(RailEngine, a_pinned_request_uses_its_NIC_alone_and_another_one_when_it_is_dead) {
  TwoEngines engines(2, 2, 1, small_chunks);
  engines.connect();
  Writes writes(engines, 1 << 20);
  const PostPlan pinned{Spread::pinned, 1, CountedAt{}};
  ASSERT_TRUE(engines.until([&] { return engines.sides[0].link->live_rails() == 2; }));
  engines.net.kill("a0", Told::never);  // nothing of this request may use it
  ASSERT_TRUE(writes.post(10, 4096, pinned).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended(); }, 2000));
  engines.net.revive("a0");
  engines.net.kill("a1", Told::early);
  ASSERT_TRUE(writes.post(10, 4096, pinned).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() || !engines.sides[0].why_lost.empty(); }));
}

TEST(RailEngine, requests_end_with_peer_lost_when_no_rail_is_left) {
  for (const Told told : {Told::early, Told::late, Told::never}) {
    TwoEngines engines(2, 2, 1, small_chunks);
    engines.connect();
    Writes writes(engines, 1 << 20);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(writes.post(40, 4096, counted_once).ok());
    for (const char* nic : {"b0", "b1"}) engines.net.kill(nic, told);
    ASSERT_TRUE(engines.until([&] { return writes.all_ended() && !engines.sides[0].why_lost.empty(); }));
    for (const auto& [request, status] : engines.sides[0].ends)
      EXPECT_TRUE(status.ok() || status.code == Code::peer_lost) << code_name(status.code);
    EXPECT_EQ(writes.post(1, 1, counted_once).code, Code::peer_lost);
    const std::string& why = engines.sides[0].why_lost;
    for (const char* part : {"no rail to fake:b0 is left", "a0 to its NIC 0: ", "a1 to its NIC 1: "})
      EXPECT_NE(why.find(part), std::string::npos) << why;
    const std::string& last = writes.writes.back()->request->why();
    EXPECT_TRUE(last.starts_with("write of 163840 bytes to fake:b0: no rail to")) << last;
    EXPECT_EQ(engines.sides[0].link->held(), 0U);
  }
}

TEST(RailEngine, a_dead_NIC_is_used_again_when_it_lives) {
  TwoEngines engines(2, 2, 1, small_chunks);
  engines.connect();
  Writes writes(engines, 2 << 20);
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(engines.until([&] {
      return engines.sides[0].link->live_rails() == 2 && engines.sides[1].link->live_rails() == 2;
    }));
    ASSERT_TRUE(writes.post(50, 4096, counted_once).ok());
    engines.net.kill(round % 2 == 0 ? "a1" : "b0", Told::early);
    ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); })) << round;
    engines.net.revive(round % 2 == 0 ? "a1" : "b0");
  }
  writes.check_quiet();
}

TEST(RailEngine, what_was_told_over_a_rail_is_told_again_when_that_rail_dies_too) {
  LinkOptions options = small_chunks;
  options.retry_after = 24h;  // else a rail that is tried again tells it
  TwoEngines engines(3, 3, 1, options);
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return engines.sides[1].link->live_rails() == 3; }));
  Writes writes(engines, 1 << 20);
  // Side 0 tells that rail 1 is down, over rail 0, and hears that the message is there. Side 1 never reads
  // it.
  engines.net.cut("a1", "b1");
  for (int i = 0; i < 100; ++i) {
    engines.sides[0].engine->poll();
    engines.net.run_next();
  }
  EXPECT_EQ(engines.sides[0].link->held(), 0U);
  engines.net.kill("b0", Told::late);
  ASSERT_TRUE(engines.until([&] { return engines.sides[1].link->live_rails() == 1; }));
  ASSERT_TRUE(writes.post(20, 4096, counted_once).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }, 5000));
}

TEST(RailEngine, a_canceled_request_ends_and_its_number_stops_no_other) {
  TwoEngines engines(2, 2, 1, small_chunks);
  engines.connect();
  Writes writes(engines, 4 << 20);
  ASSERT_TRUE(writes.post(500, 4096, counted_once).ok());
  ASSERT_TRUE(writes.post(5, 4096, counted_once).ok());
  engines.step();
  engines.sides[0].link->cancel(*writes.writes[0]->request, engines.net.now_ns());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && engines.sides[1].counts.contains(1); }));
  EXPECT_EQ(engines.sides[0].ends.at(writes.writes[0]->request.get()).code, Code::canceled);
  EXPECT_FALSE(engines.sides[1].counts.contains(0));
}

TEST(RailEngine, a_canceled_request_whose_chunk_is_lost_ends_with_its_rail) {
  LinkOptions options = small_chunks;
  options.rail_timeout = 1h;
  TwoEngines engines(2, 2, 1, options);
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return engines.sides[1].link->live_rails() == 2; }));
  Writes writes(engines, 1 << 20);
  engines.net.set_faults({.lost_percent = 100});
  ASSERT_TRUE(writes.post(1, 4096, counted_once).ok());
  engines.sides[0].engine->poll();  // the chunk goes, and its announcement
  engines.net.set_faults({});
  engines.sides[0].link->cancel(*writes.writes[0]->request, engines.net.now_ns());
  const auto before_ns = engines.net.now_ns();
  ASSERT_TRUE(engines.until([&] { return writes.all_ended(); }));
  EXPECT_LE(engines.net.now_ns() - before_ns, 1'000'000'000U);
  EXPECT_EQ(engines.sides[0].ends.begin()->second.code, Code::canceled);
  EXPECT_TRUE(engines.sides[1].counts.empty());
}

TEST(RailEngine, reads_bring_every_byte_while_a_NIC_dies) {
  for (const Told told : {Told::early, Told::late, Told::never}) {
    TwoEngines engines(3, 3, 1, small_chunks);
    engines.net.set_faults({1us, 500us, 1ms, 0, 0});
    engines.connect();
    ASSERT_TRUE(engines.until([&] { return engines.sides[0].link->live_rails() == 3; }));
    Writes writes(engines, 1 << 20);
    ASSERT_TRUE(writes.post_read(60, 4096).ok());
    engines.step();
    engines.net.kill("b1", told);
    ASSERT_TRUE(engines.until([&] { return writes.all_ended(); }));
    EXPECT_TRUE(engines.sides[0].ends.begin()->second.ok());
  }
}

TEST(RailEngine, a_read_is_not_counted) {
  TwoEngines engines(1, 1);
  engines.connect();
  Writes writes(engines, 1 << 20);
  EXPECT_EQ(writes.post_read(1, 10, counted_once).code, Code::invalid_argument);
}

TEST(RailEngine, a_refused_range_fails_its_request_alone) {
  TwoEngines engines(2, 2, 1, small_chunks);
  engines.connect();
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(100, 4096, counted_once).ok());
  writes.writes[0]->remote_view.columns.base_offset = 1 << 20;
  ASSERT_TRUE(writes.post(5, 4096, counted_once).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && engines.sides[1].counts.contains(1); }));
  EXPECT_EQ(engines.sides[0].ends.at(writes.writes[0]->request.get()).code, Code::not_found);
  EXPECT_FALSE(engines.sides[1].counts.contains(0));
  const std::string& why = writes.writes[0]->request->why();
  EXPECT_TRUE(why.starts_with("write of 409600 bytes to fake:b0: page ")) << why;
  EXPECT_NE(why.find(" over a"), std::string::npos) << why;
  EXPECT_NE(why.find("the peer refuses the range"), std::string::npos) << why;
  EXPECT_TRUE(writes.writes[1]->request->why().empty());
}

TEST(RailEngine, a_link_that_is_closed_ends_on_both_sides_and_is_forgotten) {
  TwoEngines engines(2, 2, 1, small_chunks);
  engines.connect();
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(100, 4096, counted_once).ok());
  engines.step();
  engines.sides[0].link->close("not needed any more", engines.net.now_ns());
  EXPECT_FALSE(engines.sides[0].link->lost()) << "bytes are still under way";
  ASSERT_TRUE(
      engines.until([&] { return engines.sides[0].link->lost() && !engines.sides[1].why_lost.empty(); }));
  EXPECT_EQ(engines.sides[0].ends.begin()->second.code, Code::peer_lost);
  EXPECT_NE(engines.sides[0].why_lost.find("not needed any more"), std::string::npos);
  for (Side& side : engines.sides) side.engine->forget(*side.link);
  for (const Side& side : engines.sides) EXPECT_EQ(side.engine->held(), 0U);
}

TEST(RailEngine, strange_bytes_are_refused) {
  TwoEngines engines(1, 1);
  for (const char* bytes : {"", "x", "\x02\x01"}) {
    EXPECT_EQ(engines.sides[0].engine->connect(bytes).code(), Code::corrupt);
    EXPECT_EQ(Engine::load(bytes).code(), Code::corrupt);
  }
}

/// Random requests while NICs die and come back, and everything that the fake can do happens.
struct Chaos {
  Chaos(std::uint64_t seed, unsigned lost_percent)
      : random(seed), engines(4, 3, seed, small_chunks), writes(engines, 8 << 20) {
    engines.net.set_faults(
        {1us, std::chrono::nanoseconds(1000 + random() % 2'000'000), 5ms, 10, lost_percent});
  }
  void post_one() {
    const PostPlan plan{static_cast<Spread>(random() % 3), static_cast<std::uint32_t>(random() % 4),
                        CountedAt{}, static_cast<CountBy>(random() % 3),
                        static_cast<std::uint32_t>(random() % 3)};
    const std::uint64_t page_bytes = 1 + random() % 3000;
    ASSERT_TRUE(writes.post(random() % 30, page_bytes, plan).ok() || engines.sides[0].link->lost());
  }
  /// Never the first of either side, so that one rail lives.
  void hurt_one() {
    const int side = static_cast<int>(random() % 2);
    const unsigned nic = 1 + static_cast<unsigned>(random() % 2);
    const std::string name = TwoEngines::name(side, nic);
    if (dead.erase(name) > 0) {
      engines.net.revive(name);
    } else {
      dead.insert(name);
      engines.net.kill(name, static_cast<Told>(random() % 3));
    }
  }
  void run() {
    for (int i = 0; i < 150; ++i) {
      post_one();
      if (random() % 8 == 0) hurt_one();
      const auto steps = random() % 60;
      for (std::uint64_t n = 0; n < steps; ++n) engines.step();
    }
  }

  /// All NICs live, all rails are used again, and nothing is left of what was.
  void heal() {
    for (const std::string& name : dead) engines.net.revive(name);
    EXPECT_TRUE(engines.until([&] {
      return engines.sides[0].link->live_rails() == 4 && engines.sides[1].link->live_rails() == 4 &&
             engines.sides[0].link->held() == 0 && engines.sides[1].link->held() == 0;
    }));
  }

  std::mt19937_64 random;
  TwoEngines engines;
  Writes writes;
  std::set<std::string> dead;
};

void all_arrive(std::uint64_t seed) {
  SCOPED_TRACE(seed);
  Chaos chaos(seed, 0);
  chaos.engines.connect();
  chaos.run();
  ASSERT_TRUE(chaos.engines.until([&] { return chaos.writes.all_ended() && chaos.writes.all_counted(); }));
  for (const auto& [request, status] : chaos.engines.sides[0].ends) EXPECT_TRUE(status.ok());
  chaos.heal();
  chaos.writes.check_counts();
  chaos.writes.check_quiet();
}

void all_end(std::uint64_t seed) {
  SCOPED_TRACE(seed);
  Chaos chaos(seed, 1);
  chaos.engines.connect();
  chaos.run();
  auto& sender = chaos.engines.sides[0];
  ASSERT_TRUE(chaos.engines.until(
      [&] { return chaos.writes.all_ended() && (chaos.writes.all_counted() || sender.link->lost()); }));
  for (const auto& [request, status] : sender.ends)
    EXPECT_TRUE(status.ok() || (sender.link->lost() && status.code == Code::peer_lost));
  chaos.writes.check_quiet();
}

TEST(RailEngineChaos, every_byte_arrives_and_each_immediate_is_counted_once_while_NICs_die) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) all_arrive(seed);
}

TEST(RailEngineChaos, posts_that_are_lost_end_by_the_time_of_their_rail) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) all_end(seed);
}

TEST(RailEngineChaos_slow, many_random_runs) {
  for (std::uint64_t seed = 100; seed < 160 && !testing::Test::HasFailure(); ++seed) {
    all_arrive(seed);
    all_end(seed);
  }
}

}  // namespace
}  // namespace headrace::rail
