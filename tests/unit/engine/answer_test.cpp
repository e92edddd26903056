// SPDX-License-Identifier: Apache-2.0
// Answers to a peer's revocations while posts end on other threads: each is given, and none before its time.
#include "unit/engine/deaf_peer.hpp"

#include <atomic>
#include <thread>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

class AnswerTest : public DeafPeer {
 protected:
  void revoke(std::uint64_t sequence, std::uint32_t region) {
    receive(wire::Revoke{sequence, 3, {{region, 1}}});
  }
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
