// SPDX-License-Identifier: Apache-2.0
#include "engine/link.hpp"

#include "plugins/sound_table.hpp"
#include "unit/engine/silent_events.hpp"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() {
    disconnected = 0;
    table.disconnect = [](void*, void*) { ++disconnected; };
    backend = BackendInstance::open(&table, {"a", 1, 1, "/", {}}, events).value();
  }
  static inline int disconnected = 0;
  SilentEvents events;
  headrace_backend_v1 table = sound_table("sound");
  std::unique_ptr<BackendInstance> backend;
  int connection = 0;
};

TEST_F(LinkTest, a_closed_link_disconnects_its_connection_once) {
  Link link(1, *backend, {});
  link.set_connection(&connection);
  EXPECT_EQ(link.connection(), &connection);
  link.close();
  link.close();
  EXPECT_EQ(disconnected, 1);
}

TEST_F(LinkTest, a_link_lost_and_closed_before_its_connection_is_set_still_disconnects_it) {
  Link link(1, *backend, {});
  link.set_lost({Code::peer_lost}, "it died while we connected");
  link.close();
  EXPECT_EQ(disconnected, 0);
  link.set_connection(&connection);
  EXPECT_EQ(disconnected, 1);
  EXPECT_EQ(link.connection(), nullptr);
  link.close();
  EXPECT_EQ(disconnected, 1);
}

TEST_F(LinkTest, messages_of_the_peers_agent_that_wait_have_a_number_of_bytes) {
  Link link(1, *backend, {});
  constexpr std::size_t bytes = 64 * 1024;
  std::size_t taken = 0;
  while (link.agent_messages().take(bytes)) ++taken;
  EXPECT_LE(taken * bytes, Link::AgentMessages::most_bytes);
  EXPECT_GT(taken * bytes, Link::AgentMessages::most_bytes * 9 / 10);
  link.agent_messages().give(bytes);
  link.agent_messages().give(bytes);
  EXPECT_TRUE(link.agent_messages().take(bytes));
}

}  // namespace
}  // namespace headrace::engine
