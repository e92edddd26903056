// SPDX-License-Identifier: Apache-2.0
#include "engine/link.hpp"

#include "plugins/sound_table.hpp"
#include "support/sleeping_thread.hpp"
#include "unit/engine/silent_events.hpp"

#include <gtest/gtest.h>

#include <latch>

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

TEST_F(LinkTest, a_second_thread_that_closes_a_link_gives_back_no_handle_before_its_posts_have_ended) {
  static std::latch* posts_end = nullptr;
  static std::atomic<bool> posts_have_ended = false, unloaded = false;
  std::latch end(1);
  posts_end = &end;
  table.load_remote = [](void*, void*, const headrace_remote_region_v1*, void** remote, headrace_text_v1*) {
    *remote = &unloaded;
    return int32_t{HEADRACE_OK};
  };
  table.disconnect = [](void*, void*) {
    posts_end->wait();
    posts_have_ended = true;
  };
  table.unload = [](void*, void*) {
    EXPECT_TRUE(posts_have_ended) << "a post may still use the handle";
    unloaded = true;
  };
  Link link(1, *backend, {});
  link.set_connection(&connection);
  ASSERT_TRUE(link.load(7, {}).ok());
  test::WaitingCall first([&] { link.close(); });
  EXPECT_TRUE(first.waits());
  test::WaitingCall second([&] { link.close(); });
  EXPECT_TRUE(second.waits()) << "it returns when the link is closed";
  end.count_down();
  first.join();
  second.join();
  EXPECT_TRUE(unloaded);
}

}  // namespace
}  // namespace headrace::engine
