// SPDX-License-Identifier: Apache-2.0
// A peer that breaks the rules of messages loses its link, and nothing else.
#include "unit/rail/two_engines.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using namespace test_engines;

/// A NIC that says what the test says, and answers nothing, against an engine with one NIC.
class RailMessageLies : public testing::Test {
 protected:
  explicit RailMessageLies(const LinkOptions& options = {})
      : clock_(net_), liar_(net_.open("liar")), memory_(1 << 16), room_(1 << 16) {
    std::vector<std::unique_ptr<Provider>> providers;
    providers.push_back(net_.open("honest"));
    const std::string address = providers[0]->address();
    side_.engine = std::move(*Engine::open(std::move(providers), side_, clock_, options));
    auto registered = liar_->register_memory(
        {reinterpret_cast<std::uintptr_t>(memory_.data()), memory_.size(), {}, Access::peers_read});
    id_ = registered->id;
    key_ = registered->key;
    receives_ = *side_.engine->register_memory(
        {reinterpret_cast<std::uintptr_t>(room_.data()), room_.size(), {}, Access::local});
    for (int i = 0; i < 32; ++i)
      EXPECT_TRUE(liar_->post_receive({id_, (1 << 15) + i * 1024ULL, 1024}, i).ok());
    peer_ = *liar_->add_peer(address, encode(RailHello{1, 2, 0, 1, 1, 1}));
    EXPECT_TRUE(until([&] { return side_.link != nullptr && ready_; }));
  }
  ~RailMessageLies() override {
    side_.engine.reset();
    liar_.reset();
  }
  template <class Holds>
  bool until(const Holds& holds) {
    for (int i = 0; i < 5000 && !holds(); ++i) step();
    return holds();
  }
  void step() {
    side_.engine->poll();
    Event events[8];
    const std::size_t count = liar_->poll(events);
    for (std::size_t i = 0; i < count; ++i) {
      ready_ = ready_ || events[i].kind == Event::Kind::ready;
      if (events[i].kind == Event::Kind::lost) liar_->drop_peer(peer_);
    }
    if (!net_.run_next()) net_.advance(20ms);
  }
  void say(const LinkMessage& message) {
    const std::string bytes = encode(message);
    std::copy(bytes.begin(), bytes.end(), memory_.begin());
    EXPECT_TRUE(liar_->post_message(peer_, {id_, 0, bytes.size()}, 1).ok());
    for (int i = 0; i < 20; ++i) step();
  }
  void expect_loss(const std::string& part) {
    EXPECT_TRUE(until([&] { return !side_.why_lost.empty(); }));
    EXPECT_NE(side_.why_lost.find(part), std::string::npos) << side_.why_lost;
    EXPECT_EQ(side_.link->lost_code(), Code::corrupt);
    EXPECT_EQ(side_.link->held(), 0U);
  }

  FakeNics net_;
  NetClock clock_;
  Side side_;
  std::unique_ptr<Provider> liar_;
  std::vector<char> memory_, room_;
  MemoryId id_{};
  std::string key_;
  LocalRegion receives_;
  PeerId peer_{};
  bool ready_ = false;
};

TEST_F(RailMessageLies, an_offer_beyond_the_window_is_corrupt) {
  for (std::uint64_t id = 1; id <= offer_window; ++id) say(Offer{id, 1, "m", {}});
  EXPECT_TRUE(side_.why_lost.empty());
  say(Offer{offer_window + 1, 1, "m", {}});
  expect_loss("1 to 64 may be open");
}

TEST_F(RailMessageLies, a_withdrawal_beyond_the_window_is_corrupt) {
  say(Withdraw{UINT64_MAX});
  expect_loss("may be open");
}

TEST_F(RailMessageLies, keys_for_other_NICs_than_the_peer_has_are_corrupt) {
  say(Offer{1, 5, "", {key_, key_}});
  expect_loss("2 keys");
}

TEST_F(RailMessageLies, a_message_that_cannot_be_read_is_corrupt_and_leaves_the_receive) {
  ASSERT_TRUE(side_.engine->post_receive({&receives_, 0, 1 << 16, 5}).ok());
  say(Offer{1, (1 << 16) - 1, "", {key_}});
  ASSERT_TRUE(until([&] { return side_.receives.size() == 1; })) << "that one could be read";
  EXPECT_EQ(side_.receives[0].bytes, (1U << 16) - 1);
  ASSERT_TRUE(side_.engine->post_receive({&receives_, 0, 1 << 16, 6}).ok());
  liar_->deregister(MemoryId{});
  say(Offer{2, 1 << 16, "", {"fakekey:77"}});  // memory that is not there
  expect_loss("message 2 of 65536 bytes was offered, and cannot be read");
  EXPECT_EQ(side_.receives.size(), 1U) << "the receive waits for another peer";
}

TEST_F(RailMessageLies, a_damaged_key_is_corrupt) {
  ASSERT_TRUE(side_.engine->post_receive({&receives_, 0, 100, 5}).ok());
  say(Offer{1, 100, "", {"no key"}});
  expect_loss("cannot be read");
}

TEST_F(RailMessageLies, a_message_that_no_NIC_reaches_leaves_the_receive_to_the_next_one) {
  ASSERT_TRUE(side_.engine->post_receive({&receives_, 0, 100, 5}).ok());
  say(Offer{1, 100, "", {std::string(no_key)}});
  for (int i = 0; i < 50; ++i) step();
  EXPECT_TRUE(side_.receives.empty()) << "the receive was ended by a peer";
  say(Offer{2, 1, "m", {}});
  ASSERT_TRUE(until([&] { return !side_.receives.empty(); }));
  EXPECT_TRUE(side_.receives[0].status.ok());
  EXPECT_EQ(room_[0], 'm');
  EXPECT_TRUE(side_.why_lost.empty());
}

class RailMessageFlood : public RailMessageLies {
 protected:
  RailMessageFlood() : RailMessageLies({.most_waiting_messages = 100}) {}
};

TEST_F(RailMessageFlood, a_peer_that_asks_for_answers_and_takes_none_loses_the_link) {
  say(Offer{1, 101, std::string(101, 'm'), {}});
  ASSERT_TRUE(side_.engine->post_receive({&receives_, 0, 100, 5}).ok());  // too short: the answer is done
  for (int i = 0; i < 50; ++i) step();
  for (int i = 0; i < 20'000 && side_.why_lost.empty(); ++i) {
    const std::string bytes = encode(Offer{1, 101, std::string(101, 'm'), {}});
    std::copy(bytes.begin(), bytes.end(), memory_.begin());
    static_cast<void>(liar_->post_message(peer_, {id_, 0, bytes.size()}, 1));  // as many as its NIC takes
    step();
  }
  EXPECT_NE(side_.why_lost.find("takes no messages"), std::string::npos) << side_.why_lost;
}

TEST_F(RailMessageLies, an_answer_to_a_message_that_was_not_offered_is_corrupt) {
  ASSERT_TRUE(side_.link->send({&receives_, 0, 10, 1}).ok());
  side_.engine->poll();
  say(Done{1, Code::ok, 0});
  EXPECT_EQ(side_.sends.at(1).first.code, Code::ok);
  say(Done{1, Code::canceled, 0});  // said twice: a rail may have died
  EXPECT_TRUE(side_.why_lost.empty());
  ASSERT_TRUE(side_.link->send({&receives_, 0, 10, 2}).ok());
  say(Done{3, Code::ok, 0});
  expect_loss("done with message 3, and 2 were offered");
  EXPECT_EQ(side_.sends.at(2).first.code, Code::corrupt);
}

TEST_F(RailMessageLies, an_offer_and_its_withdrawal_that_come_again_or_in_another_order_change_nothing) {
  say(Withdraw{2});
  say(Offer{2, 1, "b", {}});
  say(Offer{1, 1, "a", {}});
  say(Offer{1, 1, "x", {}});
  ASSERT_TRUE(side_.engine->post_receive({&receives_, 0, 1, 5}).ok());
  ASSERT_TRUE(until([&] { return side_.receives.size() == 1; }));
  EXPECT_EQ(room_[0], 'a');
  say(Offer{1, 1, "y", {}});
  ASSERT_TRUE(side_.engine->post_receive({&receives_, 0, 1, 6}).ok());
  for (int i = 0; i < 50; ++i) step();
  EXPECT_EQ(side_.receives.size(), 1U);
  EXPECT_TRUE(side_.why_lost.empty());
}

TEST_F(RailMessageLies, a_canceled_message_that_the_peer_does_not_give_back_loses_the_link_in_time) {
  ASSERT_TRUE(side_.link->send({&receives_, 0, 5000, 1}).ok());
  for (int i = 0; i < 20; ++i) step();
  side_.link->cancel_send(1, net_.now_ns());
  const auto before_ns = net_.now_ns();
  ASSERT_TRUE(until([&] { return !side_.sends.empty(); }));
  EXPECT_LE(net_.now_ns() - before_ns, 1'000'000'000U);
  EXPECT_NE(side_.sends.at(1).second.find("did not give a canceled message back"), std::string::npos);
}

TEST_F(RailMessageLies, a_peer_that_takes_no_messages_does_not_keep_those_to_others_back) {
  headrace_side_v1 no_pages{};
  no_pages.struct_size = sizeof no_pages;
  std::vector<std::unique_ptr<Request>> counts;
  for (std::uint32_t i = 0; i < 200; ++i) {  // each is told by a message, and the liar takes 32
    headrace_prepare_v1 nothing{};
    nothing.struct_size = sizeof nothing;
    nothing.local = nothing.remote = &no_pages;
    nothing.op = HEADRACE_WRITE;
    counts.push_back(std::make_unique<Request>(nothing));
    PostPlan plan;
    plan.counted = CountedAt{0, i, 1};
    ASSERT_TRUE(side_.link->post(*counts.back(), plan).ok());
  }
  for (int i = 0; i < 100; ++i) step();

  Side other;
  std::vector<std::unique_ptr<Provider>> providers;
  providers.push_back(net_.open("other"));
  other.engine = std::move(*Engine::open(std::move(providers), other, clock_));
  ASSERT_TRUE(other.engine->post_receive({}).ok());
  const auto before_ns = net_.now_ns();
  auto link = side_.engine->connect(other.engine->address());
  ASSERT_TRUE(link && (*link)->send({}).ok());
  EXPECT_TRUE(until([&] { return other.engine->poll(), !other.receives.empty(); }));
  EXPECT_LT(net_.now_ns() - before_ns, 200'000'000U);
  EXPECT_TRUE(side_.why_lost.empty()) << "it was not to be helped by the end of the liar's link";
  side_.engine.reset();
}

}  // namespace
}  // namespace headrace::rail
