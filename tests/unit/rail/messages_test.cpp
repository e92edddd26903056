// SPDX-License-Identifier: Apache-2.0
// Messages of users over the rails of a link.
#include "rail/engine.hpp"
#include "unit/rail/two_messengers.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using namespace test_engines;

const LinkOptions message_chunks{.chunk_bytes = 4096, .rail_bytes = 64 << 10};
const PostPlan message_counted{Spread::free, 0, CountedAt{}};

TEST(RailMessages, of_any_length_arrive_in_their_order) {
  TwoEngines engines(2, 3, 7, message_chunks);
  engines.net.set_faults({1us, 300us, 1ms, 10, 0});
  engines.connect();
  Messages messages(engines, 12 << 20);
  const std::uint64_t lengths[] = {0, 1, 300'000, max_inline_bytes, max_inline_bytes + 1, 2, 1 << 20};
  for (int i = 0; i < 35; ++i) {
    ASSERT_TRUE(messages.send(lengths[i % 7] / (i < 7 ? 1 : 20)).ok());
    ASSERT_TRUE(messages.receive(i < 7 ? 1 << 20 : 1 << 16).ok());
  }
  ASSERT_TRUE(engines.until([&] { return messages.all_sent() && messages.arrived.size() == 35; }));
  for (std::uint64_t i = 0; i < 35; ++i) EXPECT_EQ(messages.arrived[i], i);
  EXPECT_EQ(messages.sent_with(Code::ok), 35U);
  EXPECT_TRUE(engines.until([&] { return messages.nothing_held(); }));
}

TEST(RailMessages, without_a_receive_wait_and_delay_no_write) {
  TwoEngines engines(2, 2, 1, message_chunks);
  engines.connect();
  Messages messages(engines, 1 << 20);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(messages.send(i % 2 == 0 ? 10 : 5000).ok());
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(20, 4096, message_counted).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  for (int i = 0; i < 1000; ++i) engines.step();
  EXPECT_TRUE(engines.sides[0].sends.empty());
  EXPECT_LE(engines.sides[1].link->held(), offer_window) << "the peer's memory is bounded";
  EXPECT_TRUE(engines.sides[0].why_lost.empty());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(messages.receive(5000).ok());
  ASSERT_TRUE(engines.until([&] { return messages.all_sent(); }));
  EXPECT_EQ(messages.arrived.size(), 100U);
}

TEST(RailMessages, more_than_may_wait_here_are_refused) {
  TwoEngines engines(1, 1);
  engines.connect();
  Messages messages(engines, 1 << 20);
  Status last;
  while (last.ok() && messages.posted() < 10'000) last = messages.send(1);
  EXPECT_EQ(last.code, Code::would_block);
  EXPECT_EQ(messages.posted(), Sends::most_waiting + 1);
}

TEST(RailMessages, that_are_longer_than_the_receive_fail_and_leave_it_posted) {
  TwoEngines engines(2, 2, 1, message_chunks);
  engines.connect();
  Messages messages(engines, 1 << 20);
  ASSERT_TRUE(messages.receive(1000).ok());
  ASSERT_TRUE(messages.send(1001).ok());
  ASSERT_TRUE(messages.send(90'000).ok());
  ASSERT_TRUE(messages.send(1000).ok());
  ASSERT_TRUE(engines.until([&] { return messages.all_sent(); }));
  EXPECT_EQ(messages.code_of(0), Code::invalid_argument);
  EXPECT_EQ(messages.why_of(1),
            "a message of 90000 bytes is longer than the receive, which has room for 1000");
  EXPECT_EQ(messages.code_of(2), Code::ok);
  EXPECT_EQ(messages.arrived, std::vector<std::uint64_t>{2});
}

TEST(RailMessages, go_through_receives_that_post_themselves_again) {
  TwoEngines engines(2, 2, 3, message_chunks);
  engines.net.set_faults({1us, 100us, 1ms, 0, 0});
  engines.connect();
  Messages messages(engines, 4 << 20);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(messages.receive(8192, nullptr, true).ok());
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(messages.send(i * 37 % 8192).ok());
  ASSERT_TRUE(engines.until([&] { return messages.all_sent(); }));
  EXPECT_EQ(messages.arrived.size(), 200U);
  EXPECT_EQ(messages.sent_with(Code::ok), 200U);
}

TEST(RailMessages, take_receives_of_their_peer_and_of_any_peer_in_the_order_of_the_posts) {
  TwoEngines engines(1, 1);
  engines.connect();
  Messages messages(engines, 1 << 20);
  Link* const first = engines.sides[1].link;
  auto other = engines.sides[0].engine->connect(engines.sides[1].engine->address());
  ASSERT_TRUE(other);
  ASSERT_TRUE(engines.until([&] { return engines.sides[1].link != first && (*other)->live_rails() == 1; }));
  ASSERT_TRUE(messages.receive(100, engines.sides[1].link).ok());
  ASSERT_TRUE(messages.receive(100).ok());
  ASSERT_TRUE(messages.receive(100, first).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(messages.send(10).ok());  // over the first link
  ASSERT_TRUE(engines.until([&] { return messages.arrived.size() == 2; }));
  for (int i = 0; i < 100; ++i) engines.step();
  const auto& receives = engines.sides[1].receives;
  ASSERT_EQ(receives.size(), 2U) << "the first receive is for another peer";
  EXPECT_EQ(receives[0].token, 1U);
  EXPECT_EQ(receives[1].token, 2U);
  EXPECT_EQ(receives[0].from, first);
}

TEST(RailMessages, that_are_canceled_end_and_stop_no_other) {
  TwoEngines engines(2, 2, 1, message_chunks);
  engines.connect();
  Messages messages(engines, 2 << 20);
  for (int i = 0; i < 80; ++i) ASSERT_TRUE(messages.send(i % 3 == 0 ? 20'000 : 20).ok());
  messages.cancel_send(70, engines.net.now_ns());  // waits here
  for (int i = 0; i < 20; ++i) engines.step();
  for (const std::uint64_t token : {0, 1, 40}) messages.cancel_send(token, engines.net.now_ns());  // offered
  messages.cancel_send(12345, engines.net.now_ns());
  ASSERT_TRUE(engines.until([&] { return engines.sides[0].sends.size() == 4; }));
  EXPECT_EQ(messages.sent_with(Code::canceled), 4U);
  for (int i = 0; i < 76; ++i) ASSERT_TRUE(messages.receive(20'000).ok());
  ASSERT_TRUE(engines.until([&] { return messages.all_sent(); }));
  EXPECT_EQ(messages.sent_with(Code::ok), 76U);
  EXPECT_EQ(messages.arrived.size(), 76U);
}

TEST(RailMessages, that_are_canceled_while_they_are_read_end_ok) {
  TwoEngines engines(1, 1, 1, message_chunks);
  engines.connect();
  Messages messages(engines, 2 << 20);
  ASSERT_TRUE(messages.send(1 << 20).ok());
  ASSERT_TRUE(messages.receive(1 << 20).ok());
  ASSERT_TRUE(engines.until([&] { return engines.sides[1].link->held() > 2; }));  // pieces
  messages.cancel_send(0, engines.net.now_ns());
  ASSERT_TRUE(engines.until([&] { return messages.all_sent(); }));
  EXPECT_EQ(messages.code_of(0), Code::ok);
}

TEST(RailMessages, a_receive_that_is_canceled_ends_with_its_message_if_that_has_begun) {
  TwoEngines engines(2, 2, 1, message_chunks);
  engines.connect();
  Messages messages(engines, 4 << 20);
  ASSERT_TRUE(messages.receive(100).ok());
  engines.sides[1].engine->cancel_receive(0);
  engines.sides[1].engine->cancel_receive(99);
  ASSERT_EQ(engines.sides[1].receives.size(), 1U);
  EXPECT_EQ(engines.sides[1].receives[0].status.code, Code::canceled);
  EXPECT_EQ(engines.sides[1].receives[0].from, nullptr);
  ASSERT_TRUE(messages.send(1 << 20).ok());
  ASSERT_TRUE(messages.send(10).ok());
  ASSERT_TRUE(messages.receive(1 << 20).ok());
  ASSERT_TRUE(messages.receive(100).ok());
  ASSERT_TRUE(engines.until([&] { return engines.sides[1].link->held() > 4; }));
  engines.sides[1].engine->cancel_receive(1);
  ASSERT_TRUE(engines.until([&] { return messages.all_sent() && engines.sides[1].receives.size() == 3; }));
  EXPECT_EQ(engines.sides[1].receives[1].status.code, Code::canceled);
  EXPECT_EQ(messages.code_of(0), Code::canceled);
  EXPECT_EQ(messages.why_of(0), "the receive was canceled");
  EXPECT_EQ(messages.arrived, std::vector<std::uint64_t>{1});
}

TEST(RailMessages, end_when_the_link_is_lost_and_receives_of_any_peer_serve_the_next) {
  for (const Told told : {Told::early, Told::never}) {
    TwoEngines engines(2, 2, 1, message_chunks);
    engines.connect();
    Messages messages(engines, 4 << 20);
    ASSERT_TRUE(messages.receive(1 << 20).ok());
    ASSERT_TRUE(messages.receive(100, engines.sides[1].link).ok());
    for (int i = 0; i < 70; ++i) ASSERT_TRUE(messages.send(i == 0 ? 1 << 20 : 10).ok());
    ASSERT_TRUE(engines.until([&] { return engines.sides[1].link->held() > 4; }));
    for (const char* nic : {"b0", "b1"}) engines.net.kill(nic, told);
    ASSERT_TRUE(engines.until([&] { return messages.all_sent() && !engines.sides[1].why_lost.empty(); }));
    EXPECT_EQ(messages.sent_with(Code::peer_lost), 70U);
    ASSERT_EQ(engines.sides[1].receives.size(), 1U) << "that of the link alone";
    EXPECT_EQ(engines.sides[1].receives[0].status.code, Code::peer_lost);
    EXPECT_EQ(messages.send(1).code, Code::peer_lost);
    EXPECT_EQ(messages.receive(1, engines.sides[1].link).code, Code::peer_lost);
    engines.sides[0].sends.erase(70);

    for (const char* nic : {"b0", "b1"}) engines.net.revive(nic);
    engines.sides[1].link = nullptr;
    engines.connect();
    ASSERT_TRUE(messages.send(1 << 20).ok());
    ASSERT_TRUE(engines.until([&] { return messages.arrived.size() == 1; }));
  }
}

/// A NIC that dies takes with it what it had told its peer to be there.
TEST(RailMessages, whose_offer_or_answer_dies_unread_in_a_NIC_arrive_all_the_same) {
  for (const int reader : {1, 0}) {  // its NIC dies: with the offer, or with the answer
    TwoEngines engines(2, 2, 1, message_chunks);
    engines.connect();
    ASSERT_TRUE(engines.until([&] { return engines.sides[1].link->live_rails() == 2; }));
    Messages messages(engines, 1 << 20);
    ASSERT_TRUE(messages.receive(10'000).ok());
    ASSERT_TRUE(messages.send(10).ok());
    if (reader == 0) {
      engines.sides[0].engine->poll();
      for (int i = 0; i < 20; ++i) engines.net.run_next();
    }
    for (int i = 0; i < 20; ++i) {
      engines.sides[1 - reader].engine->poll();
      engines.net.run_next();
    }
    ASSERT_EQ(messages.arrived.size(), reader == 0 ? 1U : 0U);
    engines.net.kill(TwoEngines::name(reader, 0), Told::late);
    ASSERT_TRUE(engines.until([&] { return messages.all_sent() && messages.arrived.size() == 1; })) << reader;
    EXPECT_EQ(messages.code_of(0), Code::ok);
  }
}

TEST(RailMessages, outside_of_their_region_are_refused) {
  TwoEngines engines(1, 1);
  engines.connect();
  LocalRegion region{{4096, 100, {}, Access::local}, {}, {}};
  EXPECT_EQ(engines.sides[0].link->send({&region, 50, 51, 0}).code, Code::invalid_argument);
  EXPECT_EQ(engines.sides[0].link->send({nullptr, 0, 1, 0}).code, Code::invalid_argument);
  Engine& engine = *engines.sides[0].engine;
  EXPECT_EQ(engine.post_receive({&region, UINT64_MAX, 2}).code, Code::invalid_argument);
  EXPECT_EQ(engine.post_receive({nullptr, 0, 1}).code, Code::invalid_argument);
  region.memory.device = 0;
  EXPECT_EQ(engine.post_receive({&region, 0, 1}).code, Code::not_supported);
}

/// Messages and writes while NICs die and come back.
void all_messages_arrive(std::uint64_t seed) {
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  TwoEngines engines(4, 3, seed, message_chunks);
  engines.net.set_faults({1us, std::chrono::nanoseconds(1000 + random() % 2'000'000), 5ms, 10, 0});
  engines.connect();
  Messages messages(engines, 8 << 20);
  Writes writes(engines, 4 << 20);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(messages.receive(64 << 10, nullptr, true).ok());
  std::set<std::string> dead;
  for (int i = 0; i < 150; ++i) {
    ASSERT_TRUE(messages.send(random() % (random() % 2 == 0 ? 2000 : 60'000)).ok());
    ASSERT_TRUE(writes.post(random() % 10, 1 + random() % 2000, message_counted).ok());
    const std::string name =
        TwoEngines::name(static_cast<int>(random() % 2), 1 + static_cast<unsigned>(random() % 2));
    if (random() % 8 == 0) {
      if (dead.erase(name) > 0) {
        engines.net.revive(name);
      } else {
        dead.insert(name);
        engines.net.kill(name, static_cast<Told>(random() % 3));
      }
    }
    for (std::uint64_t steps = random() % 60; steps > 0; --steps) engines.step();
  }
  ASSERT_TRUE(
      engines.until([&] { return messages.all_sent() && writes.all_ended() && writes.all_counted(); }));
  EXPECT_EQ(messages.sent_with(Code::ok), 150U);
  ASSERT_EQ(messages.arrived.size(), 150U);
  for (std::uint64_t i = 0; i < 150; ++i) ASSERT_EQ(messages.arrived[i], i);
  writes.check_quiet();
  for (const std::string& name : dead) engines.net.revive(name);
  EXPECT_TRUE(engines.until([&] { return messages.nothing_held(); }));
}

TEST(RailMessagesChaos, each_arrives_once_and_in_order_while_NICs_die) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) all_messages_arrive(seed);
}

TEST(RailMessagesChaos_slow, many_random_runs) {
  for (std::uint64_t seed = 100; seed < 200 && !testing::Test::HasFailure(); ++seed)
    all_messages_arrive(seed);
}

}  // namespace
}  // namespace headrace::rail
