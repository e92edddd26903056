// SPDX-License-Identifier: Apache-2.0
// Answers to a peer's revocations while posts end on other threads: each is given, and none before its time.
#include "engine/engine.hpp"
#include "support/temporary_folder.hpp"
#include "unit/engine/deaf_backend.hpp"
#include "unit/engine/linked_backend.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

class AnswerTest : public testing::Test {
 protected:
  AnswerTest() {
    only_this_thread.emplace(
        *engine);  // before a thread waits: the clock stands still, and it would seem to drive
    add_linked(*engine, *Deaf::table());
    const MemoryRange range{memory.data(), memory.size()};
    ours = engine->regions().add({&range, 1}, {}, {}).value().front().id;
    EXPECT_TRUE(engine->peers().import(peers_regions()).ok());
    EXPECT_EQ(engine->peers().connect("there", 0ns, {}).code(), Code::timed_out);
    Deaf::make_ready();
  }
  ~AnswerTest() override {
    only_this_thread.reset();
    engine->close();
  }

  /// Regions 1 and 2.
  static wire::Metadata peers_regions() {
    wire::Metadata m;
    m.name = "there";
    m.incarnation = 5;
    m.version = 2;
    m.backends.push_back({"deaf", "1", "info"});
    m.ids = {1, 2};
    m.addresses = {0x1000, 0x2000};
    m.lengths = {64, 64};
    m.kinds = {HEADRACE_DRAM, HEADRACE_DRAM};
    m.masks = {1, 1};
    return m;
  }
  std::shared_ptr<RequestCore> make(std::uint32_t region) {
    RequestPlan plan;
    plan.local = engine->lists().prepare(Side::local(), UniformPages{ours, 0, 64, 64, 1}).value();
    plan.remote =
        engine->lists().prepare(Side::remote("there"), UniformPages{{region}, 0, 64, 64, 1}).value();
    plan.count = 1;
    return engine->requests().make(std::move(plan)).value();
  }
  /// As if the peer had sent it.
  void revoke(std::uint64_t sequence, std::uint32_t region) {
    engine->received(Deaf::link, HEADRACE_CHANNEL_AGENT,
                     *wire::encode(wire::AgentMessage{wire::Revoke{sequence, 3, {{region, 1}}}}));
    (void)engine->progress().poll();
  }

  Logger logger;
  const test::TemporaryFolder folder;
  FakeClock clock;
  std::shared_ptr<Engine> engine =
      Engine::open({.name = "here", .runtime_dir = folder.path()}, logger, clock).value();
  std::array<std::byte, 64> memory{};
  RegionId ours{};
  std::optional<HeldProgress> only_this_thread;  // runs the progress, and those that the test makes
};

TEST_F(AnswerTest, a_post_that_ends_while_another_thread_answers_is_not_overlooked) {
  const auto request = make(1);
  ASSERT_TRUE(request->post(nullptr).ok());
  ASSERT_EQ(Deaf::posts, 1);
  revoke(1, 1);
  ASSERT_TRUE(Deaf::answered.empty()) << "a post is in flight";
  // This thread has seen that the first region is in use, and answers for the second. Now the post ends, and
  // the thread on which it ends looks for answers to give.
  Deaf::answers = [&](std::uint64_t sequence) {
    if (sequence != 2) return;
    std::thread([&] {
      Deaf::complete();
      (void)engine->progress().poll();
    }).join();
  };
  revoke(2, 2);
  EXPECT_EQ(request->state(), RequestState::done);
  EXPECT_EQ(Deaf::answered, (std::vector<std::uint64_t>{2, 1}));
}

TEST_F(AnswerTest, a_region_in_use_is_released_when_its_last_post_has_ended) {
  const auto request = make(1);
  ASSERT_TRUE(request->post(nullptr).ok());
  revoke(7, 1);
  (void)engine->progress().poll();
  ASSERT_TRUE(Deaf::answered.empty());
  Deaf::complete();
  (void)engine->progress().poll();
  EXPECT_EQ(Deaf::answered, std::vector<std::uint64_t>{7});
  EXPECT_EQ(request->post(nullptr).code, Code::not_found);
}

TEST_F(AnswerTest, no_post_is_in_flight_on_a_region_once_it_is_released_whatever_the_moment) {
  for (int round = 0; round < 300; ++round) {
    wire::Metadata again = peers_regions();
    again.version = 10 + static_cast<std::uint64_t>(round);
    ASSERT_TRUE(engine->peers().import(std::move(again)).ok());
    const auto request = make(1);
    Deaf::answered.clear();
    std::jthread posting([&] {
      (void)request->post(nullptr);
      Deaf::complete();
    });
    for (int spin = round % 50; spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    Deaf::answers = [&](std::uint64_t) { EXPECT_EQ(Deaf::token, 0U) << "a post is in flight"; };
    revoke(static_cast<std::uint64_t>(round) + 1, 1);
    posting.join();
    const Deadline deadline = Deadline::after(10s);
    while (Deaf::answered.empty() && !deadline.expired()) (void)engine->progress().poll();
    ASSERT_EQ(Deaf::answered.size(), 1U) << "round " << round;
  }
}

}  // namespace
}  // namespace headrace::engine
