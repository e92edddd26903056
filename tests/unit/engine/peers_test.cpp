// SPDX-License-Identifier: Apache-2.0
#include "engine/peers.hpp"
#include "unit/engine/parts.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <variant>
#include <vector>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

const headrace_backend_v1 backend_of_peers = recording_table("first");

struct CountingWatcher final : LinkWatcher {
  void link_added(const std::shared_ptr<Link>&) override { ++added; }
  void link_lost(const std::shared_ptr<Link>&) override { ++lost; }
  void link_gone(const std::shared_ptr<Link>&) override { ++gone; }
  int added = 0, lost = 0, gone = 0;
};

class PeersTest : public testing::Test {
 protected:
  PeersTest() : backend(parts.add(backend_of_peers)) { parts.links.watch(watcher); }
  Parts parts;
  CountingWatcher watcher;
  BackendInstance& backend;
};

TEST_F(PeersTest, a_link_is_made_once_and_is_ready_when_the_backend_says_so) {
  const auto life = parts.import("there");
  const auto link = parts.links.to(life, backend).value();
  EXPECT_EQ(parts.links.to(life, backend).value(), link);
  EXPECT_EQ(Recorded::connects, 1);
  EXPECT_EQ(link->state(), LinkState::connecting);
  parts.links.event(link->token(), HEADRACE_LINK_READY, {}, "");
  EXPECT_EQ(link->state(), LinkState::ready);
  EXPECT_TRUE(parts.peers.connect("there", 0ns, {}).ok());
}

TEST_F(PeersTest, a_peer_that_only_connected_is_listed_with_the_backend_of_its_link) {
  const std::uint64_t token = parts.peers.accepted(backend, &Recorded::handle, "there", 1);
  ASSERT_EQ(parts.peers.list().size(), 1U);
  EXPECT_TRUE(parts.peers.list().front().connected);
  EXPECT_EQ(parts.peers.list().front().backends, std::vector<std::string>{"first"});
  parts.links.event(token, HEADRACE_LINK_LOST, {Code::peer_lost}, "it died");
  const PeerInfo gone = parts.peers.list().front();
  EXPECT_TRUE(gone.lost);
  EXPECT_EQ(gone.detail, "first: it died");
  EXPECT_TRUE(gone.backends.empty());
}

TEST_F(PeersTest, a_lost_link_is_closed_later_and_every_watcher_is_told) {
  const auto life = parts.import("there");
  const auto link = parts.links.to(life, backend).value();
  parts.links.event(link->token(), HEADRACE_LINK_LOST, {Code::peer_lost}, "it died");
  EXPECT_EQ(watcher.lost, 1);
  EXPECT_EQ(Recorded::disconnects, 0) << "this may be inside a backend's call";
  (void)parts.progress->poll();
  EXPECT_EQ(Recorded::disconnects, 1);
  EXPECT_EQ(watcher.gone, 1);
  EXPECT_EQ(parts.links.find(link->token()), nullptr);
  EXPECT_EQ(link->lost_text(), "it died");
  EXPECT_TRUE(parts.peers.list().front().lost);
}

TEST_F(PeersTest, metadata_that_comes_again_after_a_loss_gives_the_peer_another_chance) {
  const auto life = parts.import("there");
  const auto link = parts.links.to(life, backend).value();
  parts.links.event(link->token(), HEADRACE_LINK_LOST, {Code::peer_lost}, "it died");
  (void)parts.progress->poll();
  ASSERT_TRUE(parts.peers.list().front().lost);
  ASSERT_EQ(parts.import("there"), life);
  EXPECT_FALSE(parts.peers.list().front().lost);
  parts.peers.end_life(*life, Fate::left, "it has closed its agent");
  ASSERT_EQ(parts.import("there"), life);
  EXPECT_TRUE(parts.peers.list().front().lost) << "a life that has ended does not begin again";
}

TEST_F(PeersTest, a_connection_that_fails_at_once_leaves_no_link) {
  const auto life = parts.import("there");
  Recorded::connect_fails = true;
  EXPECT_EQ(parts.links.to(life, backend).code(), Code::not_supported);
  EXPECT_TRUE(parts.links.all().empty());
  EXPECT_EQ(parts.peers.connect("there", 0ns, {}).code(), Code::not_supported);
}

TEST_F(PeersTest, a_restarted_peer_is_another_life_and_the_former_one_ends) {
  const auto first = parts.import("there", 1);
  const auto link = parts.links.to(first, backend).value();
  const auto second = parts.import("there", 2);
  EXPECT_NE(first, second);
  EXPECT_EQ(first->fate.load(), Fate::replaced);
  EXPECT_EQ(link->state(), LinkState::lost);
  EXPECT_EQ(parts.links.to(first, backend).code(), Code::peer_lost);
  EXPECT_EQ(parts.peers.find("there").value(), second);
}

/// A life of "there" whose link is ready, and a newcomer that takes the name.
class ContestTest : public PeersTest {
 protected:
  ContestTest() {
    token = parts.peers.accepted(backend, &Recorded::handle, "there", 1);
    holder = parts.peers.find("there").value();
    newcomers = parts.peers.accepted(backend, &Recorded::handle, "there", 2);
    newcomer = newcomers != 0 ? parts.links.find(newcomers)->life() : nullptr;
    (void)parts.progress->poll();
  }
  [[nodiscard]] std::uint64_t asked() const {
    return std::get<wire::Ask>(wire::decode_agent_message(Recorded::last_message()).value()).sequence;
  }
  void wait(std::chrono::nanoseconds time) {
    parts.clock.advance(time);
    (void)parts.progress->poll();
    (void)parts.progress->poll();
  }
  std::uint64_t token = 0, newcomers = 0;
  std::shared_ptr<PeerLife> holder, newcomer;
};

TEST_F(ContestTest, a_life_that_is_connected_and_answers_keeps_its_name) {
  ASSERT_NE(newcomer, nullptr);
  EXPECT_EQ(parts.peers.find("there").value(), holder);
  parts.peers.contests().present(*holder, asked());
  wait(0ns);
  EXPECT_EQ(parts.peers.find("there").value(), holder);
  EXPECT_EQ(holder->fate.load(), Fate::alive);
  EXPECT_EQ(parts.links.find(token)->state(), LinkState::ready);
  EXPECT_EQ(newcomer->fate.load(), Fate::refused);
  EXPECT_EQ(parts.links.find(newcomers), nullptr) << "its link is closed";
  EXPECT_EQ(parts.telemetry.counter("peers.refused").value(), 1U);
}

TEST_F(ContestTest, a_life_that_is_silent_is_replaced_after_a_bound) {
  wait(NameContests::patience / 2);
  EXPECT_EQ(parts.peers.find("there").value(), holder);
  wait(NameContests::patience);
  EXPECT_EQ(parts.peers.find("there").value(), newcomer);
  EXPECT_EQ(holder->fate.load(), Fate::replaced);
  EXPECT_EQ(parts.links.find(newcomers)->state(), LinkState::ready);
}

TEST_F(ContestTest, a_life_whose_last_link_is_lost_is_replaced_at_once) {
  parts.links.event(token, HEADRACE_LINK_LOST, {Code::peer_lost}, "it died");
  wait(20ms);
  EXPECT_EQ(parts.peers.find("there").value(), newcomer);
}

TEST_F(ContestTest, an_answer_to_another_question_or_of_another_life_counts_for_nothing) {
  parts.peers.contests().present(*holder, asked() + 1);
  parts.peers.contests().present(*newcomer, asked());
  wait(NameContests::patience);
  EXPECT_EQ(parts.peers.find("there").value(), newcomer);
}

TEST_F(ContestTest, what_the_newcomer_says_waits_until_it_has_the_name) {
  std::string said;
  for (const char* word : {"a", "b"})
    EXPECT_TRUE(NameContests::say_or_hold(*newcomer, 1, [&said, word] { said += word; }));
  EXPECT_EQ(said, "");
  EXPECT_FALSE(NameContests::say_or_hold(*newcomer, NameContests::most_held_bytes, [] {}));
  wait(NameContests::patience);
  EXPECT_EQ(said, "ab");
  EXPECT_TRUE(NameContests::say_or_hold(*newcomer, 1, [&said] { said += "c"; }));
  EXPECT_EQ(said, "abc");
}

TEST_F(ContestTest, a_third_of_the_name_is_refused_and_the_callers_word_decides_at_once) {
  EXPECT_EQ(parts.peers.accepted(backend, &Recorded::handle, "there", 3), 0U);
  EXPECT_EQ(parts.import("there", 2), newcomer) << "with the link that it has made";
  EXPECT_EQ(holder->fate.load(), Fate::replaced);
  EXPECT_FALSE(newcomer->contends.load());
}

wire::Metadata sent_by(const std::string& name, std::uint64_t incarnation, std::string info = "info") {
  wire::Metadata m;
  m.name = name;
  m.incarnation = incarnation;
  m.end = 1;
  m.backends = {{"first", "1", std::move(info)}};
  return m;
}

TEST_F(ContestTest, metadata_of_another_incarnation_that_is_sent_waits_for_the_answer) {
  EXPECT_EQ(parts.peers.import(sent_by("there", 2), Origin::sender).code(), Code::would_block);
  EXPECT_EQ(parts.peers.find("there").value(), holder);
}

/// A connected peer whose restart sends metadata before it connects.
TEST_F(PeersTest, metadata_of_a_restart_is_taken_once_the_peer_has_been_silent) {
  const std::uint64_t token = parts.peers.accepted(backend, &Recorded::handle, "there", 1);
  EXPECT_EQ(parts.peers.import(sent_by("there", 2), Origin::sender).code(), Code::would_block);
  (void)parts.progress->poll();
  EXPECT_EQ(parts.links.find(token)->state(), LinkState::ready);
  parts.clock.advance(NameContests::patience);
  (void)parts.progress->poll();
  (void)parts.progress->poll();
  EXPECT_EQ(parts.links.find(token), nullptr);
  EXPECT_TRUE(parts.peers.import(sent_by("there", 2), Origin::sender).ok());
  EXPECT_EQ(parts.peers.find("there").value()->incarnation, 2U);
}

TEST_F(PeersTest, a_sender_does_not_change_the_way_to_a_peer) {
  const auto life = parts.import("there");
  EXPECT_TRUE(parts.peers.import(sent_by("there", 1), Origin::sender).ok()) << "the same way";
  EXPECT_EQ(parts.peers.import(sent_by("there", 1, "elsewhere"), Origin::sender).code(),
            Code::invalid_argument);
  EXPECT_EQ(life->backends[0].info, "info");
  EXPECT_TRUE(parts.peers.import(sent_by("there", 1, "elsewhere")).ok());
}

TEST_F(PeersTest, agents_that_nobody_has_named_have_a_number) {
  std::vector<std::string> gone;
  parts.peers.on_gone([&](const PeerLife& life) { gone.push_back(life.name); });
  const auto come = [&](const std::string& name) {
    return parts.peers.accepted(backend, &Recorded::handle, name, 1);
  };
  const std::uint64_t first = come("a");
  EXPECT_NE(come("b"), 0U);
  EXPECT_NE(come("c"), 0U);
  EXPECT_EQ(come("d"), 0U) << "all three are connected";
  EXPECT_EQ(parts.telemetry.counter("links.refused").value(), 1U);
  parts.links.end(parts.links.find(first));
  EXPECT_NE(come("d"), 0U);
  EXPECT_EQ(gone, std::vector<std::string>{"a"});
  EXPECT_EQ(parts.peers.find("a").code(), Code::not_found);
  EXPECT_EQ(parts.peers.import(sent_by("e", 1), Origin::sender).code(), Code::exhausted);
  (void)parts.import("b");
  EXPECT_TRUE(parts.peers.import(sent_by("e", 1), Origin::sender).ok()) << "b is named by now";
}

TEST_F(PeersTest, links_of_one_peer_have_a_number) {
  for (std::size_t i = 0; i < Peers::most_links; ++i)
    ASSERT_NE(parts.peers.accepted(backend, &Recorded::handle, "there", 1), 0U);
  EXPECT_EQ(parts.peers.accepted(backend, &Recorded::handle, "there", 1), 0U);
  EXPECT_NE(parts.peers.accepted(backend, &Recorded::handle, "other", 1), 0U);
}

TEST_F(PeersTest, metadata_that_agents_send_has_a_number_of_bytes) {
  wire::Metadata large = sent_by("there", 1);
  large.ids = {1};
  large.addresses = {0x1000};
  large.lengths = {4096};
  large.kinds = {HEADRACE_DRAM};
  large.masks = {1};
  large.named = {{1, "", std::string(parts.limits.sent_bytes, 'n')}};
  large.end = 2;
  ASSERT_TRUE(parts.peers.import(large, Origin::sender).ok());
  const auto refused = parts.peers.import(sent_by("other", 1), Origin::sender);
  EXPECT_EQ(refused.code(), Code::exhausted);
  EXPECT_NE(refused.error().message.find("metadata_bytes"), std::string::npos);
  ASSERT_TRUE(parts.peers.import(sent_by("there", 1)).ok());
  EXPECT_TRUE(parts.peers.import(sent_by("other", 1), Origin::sender).ok()) << "it is named by now";
}

TEST_F(PeersTest, a_link_of_an_agent_with_our_name_or_none_is_refused) {
  EXPECT_EQ(parts.peers.accepted(backend, &Recorded::handle, "here", 8), 0U);
  EXPECT_EQ(parts.peers.accepted(backend, &Recorded::handle, "", 8), 0U);
  EXPECT_NE(parts.peers.accepted(backend, &Recorded::handle, "there", 8), 0U);
  EXPECT_EQ(watcher.added, 1);
  (void)parts.calls.shut();
  EXPECT_EQ(parts.peers.accepted(backend, &Recorded::handle, "other", 8), 0U);
}

TEST_F(PeersTest, a_forgotten_peer_is_unknown_and_its_links_are_closed) {
  const auto life = parts.import("there");
  (void)parts.links.to(life, backend);
  ASSERT_TRUE(parts.peers.forget("there"));
  EXPECT_EQ(parts.peers.find("there").code(), Code::not_found);
  EXPECT_TRUE(parts.links.all().empty());
  EXPECT_EQ(Recorded::disconnects, 1);
}

}  // namespace
}  // namespace headrace::engine
