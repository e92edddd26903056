// SPDX-License-Identifier: Apache-2.0
#include "engine/peers.hpp"
#include "unit/engine/parts.hpp"

#include <gtest/gtest.h>

#include <thread>

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
