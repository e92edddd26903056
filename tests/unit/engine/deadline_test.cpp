// SPDX-License-Identifier: Apache-2.0
// A deadline belongs to one post: it never ends the next one, and a post that is refused leaves none.
#include "engine/engine.hpp"
#include "support/hook_clock.hpp"
#include "support/temporary_folder.hpp"
#include "unit/engine/deaf_backend.hpp"
#include "unit/engine/linked_backend.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

class DeadlineTest : public testing::Test {
 protected:
  DeadlineTest() {
    add_linked(*engine, *Deaf::table());
    const MemoryRange range{memory.data(), memory.size()};
    const RegionId region = engine->regions().add({&range, 1}, {}, {}).value().front().id;
    RequestPlan plan;
    plan.local = engine->lists().prepare(Side::local(), UniformPages{region, 0, 64, 64, 1}).value();
    plan.remote = engine->lists().prepare(Side::remote("alone"), UniformPages{region, 64, 64, 64, 1}).value();
    plan.count = 1;
    request = engine->requests().make(std::move(plan)).value();
    only_this_thread.emplace(*engine);
  }
  ~DeadlineTest() override {
    only_this_thread.reset();
    engine->close();
  }

  Logger logger;
  const test::TemporaryFolder folder;
  test::HookClock clock;
  std::shared_ptr<Engine> engine =
      Engine::open({.name = "alone", .runtime_dir = folder.path()}, logger, clock).value();
  std::array<std::byte, 128> memory{};
  std::shared_ptr<RequestCore> request;
  std::optional<HeldProgress> only_this_thread;  // runs the timers
  const PostOptions five_seconds{.timeout = 5s};
};

TEST_F(DeadlineTest, a_deadline_that_expires_while_its_post_ends_and_the_next_begins_ends_neither) {
  ASSERT_TRUE(request->post(&five_seconds).ok());
  clock.advance(6s);
  // The first reading is that of the poll. At the second `expire` has read which post is under way, and its
  // deadline.
  clock.at_reading(2, [&] {
    Deaf::complete();
    ASSERT_TRUE(request->post(nullptr).ok());
  });
  (void)engine->progress().poll();
  EXPECT_EQ(request->times().posts, 2U);
  EXPECT_EQ(request->state(), RequestState::posted);
  clock.advance(60s);
  (void)engine->progress().poll();
  EXPECT_EQ(request->state(), RequestState::posted);
}

TEST_F(DeadlineTest, a_post_that_expires_ends_by_its_own_deadline_after_one_without_any) {
  ASSERT_TRUE(request->post(nullptr).ok());
  Deaf::complete();
  ASSERT_TRUE(request->post(&five_seconds).ok());
  clock.advance(6s);
  (void)engine->progress().poll();
  EXPECT_EQ(request->wait(0ns).code, Code::timed_out);
}

TEST_F(DeadlineTest, a_refused_post_leaves_no_deadline_and_the_state_of_before) {
  Deaf::full = true;
  ASSERT_EQ(request->post(&five_seconds).code, Code::would_block);
  EXPECT_EQ(request->state(), RequestState::prepared);
  Deaf::full = false;
  ASSERT_TRUE(request->post(nullptr).ok());
  for (int i = 0; i < 3; ++i) {
    clock.advance(6s);
    (void)engine->progress().poll();
    ASSERT_EQ(request->state(), RequestState::posted);
  }
}

TEST_F(DeadlineTest, a_refused_post_between_two_others_changes_the_deadline_of_neither) {
  ASSERT_TRUE(request->post(&five_seconds).ok());  // its timer stays armed
  Deaf::complete();
  const PostOptions one_second{.timeout = 1s}, ten_seconds{.timeout = 10s};
  Deaf::full = true;
  ASSERT_EQ(request->post(&one_second).code, Code::would_block);
  EXPECT_EQ(request->state(), RequestState::done);
  Deaf::full = false;
  ASSERT_TRUE(request->post(&ten_seconds).ok());
  clock.advance(6s);
  (void)engine->progress().poll();
  ASSERT_EQ(request->state(), RequestState::posted);
  clock.advance(6s);
  (void)engine->progress().poll();
  EXPECT_EQ(request->wait(0ns).code, Code::timed_out);
}

}  // namespace
}  // namespace headrace::engine
