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

}  // namespace
}  // namespace headrace::engine
