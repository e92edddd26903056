// SPDX-License-Identifier: Apache-2.0
#include "engine/link.hpp"

#include "plugins/sound_table.hpp"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

struct Silent : HostEvents {
  void completed(std::uint64_t, Status, std::string_view) override {}
  std::uint64_t accepted(BackendInstance&, void*, std::string_view, std::uint64_t) override { return 0; }
  void link_event(std::uint64_t, headrace_link_event_v1, Status, std::string_view) override {}
  void received(std::uint64_t, std::uint32_t, std::string_view) override {}
  bool submit(void (*)(void*), void*) override { return false; }
  void wake() override {}
  bool log_enabled(const std::string&, int) override { return false; }
  void log(const std::string&, int, std::string_view) override {}
  void count(std::string_view, std::uint64_t) override {}
};

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() {
    disconnected = 0;
    table.disconnect = [](void*, void*) { ++disconnected; };
    backend = BackendInstance::open(&table, {"a", 1, 1, "/", {}}, events).value();
  }
  static inline int disconnected = 0;
  Silent events;
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
