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

TEST_F(LinkTest, gives_its_connection_back_once_when_it_closes) {
  Link link(1, *backend, {});
  link.set_connection(&connection);
  EXPECT_EQ(link.connection(), &connection);
  link.close();
  link.close();
  EXPECT_EQ(disconnected, 1);
}

TEST_F(LinkTest, lost_and_closed_before_its_connection_was_told_gives_it_back_all_the_same) {
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
