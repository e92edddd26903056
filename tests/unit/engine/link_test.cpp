// SPDX-License-Identifier: Apache-2.0
#include "engine/link.hpp"

#include "engine/remote_regions.hpp"
#include "plugins/sound_table.hpp"
#include "support/median_time.hpp"
#include "support/sleeping_thread.hpp"
#include "unit/engine/silent_events.hpp"

#include <gtest/gtest.h>

#include <latch>
#include <set>
#include <vector>

namespace headrace::engine {
namespace {

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() {
    disconnected = 0;
    loaded.clear();
    table.disconnect = [](void*, void*) { ++disconnected; };
    table.load_remote = [](void*, void*, const headrace_remote_region_v1* region, void** remote,
                           headrace_text_v1*) {
      *remote = handle_of(region->region_id);
      loaded.insert(region->region_id);
      return int32_t{HEADRACE_OK};
    };
    table.unload = [](void*, void* remote) {
      loaded.erase(static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(remote)));
    };
    backend = BackendInstance::open(&table, {"a", 1, 1, "/", {}}, events).value();
  }
  static void* handle_of(std::uint32_t region_id) {
    return reinterpret_cast<void*>(std::uintptr_t{region_id});
  }
  static void load(Link& link, std::uint32_t count) {
    for (std::uint32_t id = 1; id <= count; ++id)
      ASSERT_EQ(link.load(id, RemoteRegion{}.to_c(id, {})).value(), handle_of(id));
  }
  /// The time that one region takes of `count` that are loaded.
  double unload_ns(std::uint32_t count) {
    static int unloaded;  // a set would take longer than what is measured
    unloaded = 0;
    table.load_remote = [](void*, void*, const headrace_remote_region_v1* region, void** remote,
                           headrace_text_v1*) {
      *remote = handle_of(region->region_id);
      return int32_t{HEADRACE_OK};
    };
    table.unload = [](void*, void*) { ++unloaded; };
    Link link(1, *backend, {});
    link.set_connection(&connection);
    load(link, count);
    const double time = test::median_ns(101, [&](std::size_t i) {
      const IdRange one{static_cast<std::uint32_t>(1 + i * (count / 101)), 1};
      link.unload({&one, 1});
    });
    EXPECT_EQ(unloaded, 101);
    link.close();
    return time;
  }

  static inline int disconnected = 0;
  static inline std::set<std::uint32_t> loaded;
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

TEST_F(LinkTest, regions_that_are_unloaded_are_loaded_anew_and_the_others_stay) {
  Link link(1, *backend, {});
  link.set_connection(&connection);
  load(link, 20);
  link.unload(std::vector<IdRange>{{2, 2}, {7, 1}, {30, 1}});
  EXPECT_EQ(loaded.size(), 17U);
  EXPECT_FALSE(loaded.contains(2) || loaded.contains(3) || loaded.contains(7));
  load(link, 7);
  EXPECT_EQ(loaded.size(), 20U);
  link.unload(std::vector<IdRange>{{5, 1}, {10, UINT32_MAX - 10}});
  EXPECT_EQ(loaded, (std::set<std::uint32_t>{1, 2, 3, 4, 6, 7, 8, 9}));
  link.close();
  EXPECT_TRUE(loaded.empty());
}

TEST_F(LinkTest, unloading_a_region_takes_the_same_time_however_many_are_loaded) {
  const double few = unload_ns(1000), many = unload_ns(100'000);
  EXPECT_LE(many, 8 * few) << few << " ns of 1,000 regions, " << many << " ns of 100,000";
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
