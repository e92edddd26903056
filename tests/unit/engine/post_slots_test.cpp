// SPDX-License-Identifier: Apache-2.0
#include "engine/post_slots.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <set>
#include <thread>
#include <vector>

namespace headrace::engine {
namespace {

RequestCore& owner_at(int& address) { return reinterpret_cast<RequestCore&>(address); }

class PostSlotsTest : public testing::Test {
 protected:
  PostSlots::Hold take() {
    auto slot = slots.take().value();
    slot.set_owner(owner_at(owner));
    return slot;
  }
  int owner = 0;
  PostSlots slots;
};

TEST_F(PostSlotsTest, a_post_is_completed_once) {
  auto slot = take();
  const std::uint64_t token = slot.begin();
  EXPECT_EQ(slots.complete(token), &owner_at(owner));
  EXPECT_EQ(slots.complete(token), nullptr);
}

TEST_F(PostSlotsTest, a_late_token_does_not_complete_the_next_post) {
  auto slot = take();
  const std::uint64_t first = slot.begin();
  (void)slots.complete(first);
  const std::uint64_t second = slot.begin();
  EXPECT_EQ(slots.complete(first), nullptr);
  EXPECT_EQ(slots.complete(second), &owner_at(owner));
}

TEST_F(PostSlotsTest, a_withdrawn_post_is_not_completed_and_a_completed_one_not_withdrawn) {
  auto slot = take();
  const std::uint64_t withdrawn = slot.begin();
  EXPECT_TRUE(slot.withdraw(withdrawn));
  EXPECT_EQ(slots.complete(withdrawn), nullptr);
  const std::uint64_t completed = slot.begin();
  EXPECT_NE(slots.complete(completed), nullptr);
  EXPECT_FALSE(slot.withdraw(completed));
}

TEST_F(PostSlotsTest, a_token_of_a_request_that_is_gone_means_nothing_to_the_next_owner_of_its_slot) {
  std::optional<PostSlots::Hold> slot(take());
  const std::uint64_t old = slot->begin();
  (void)slots.complete(old);
  slot.reset();
  auto next = take();
  const std::uint64_t token = next.begin();
  EXPECT_EQ(static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(old)) << "the slot is used again";
  EXPECT_EQ(slots.complete(old), nullptr);
  EXPECT_NE(slots.complete(token), nullptr);
}

TEST_F(PostSlotsTest, tokens_that_were_never_given_out_are_ignored) {
  auto slot = take();
  (void)slot.begin();
  for (const std::uint64_t token :
       {std::uint64_t{0}, std::uint64_t{1} << 32 | 5, std::uint64_t{1} << 32 | 123'456, ~std::uint64_t{0},
        std::uint64_t{0xdeadbeefdeadbeef}})
    EXPECT_EQ(slots.complete(token), nullptr) << token;
}

TEST_F(PostSlotsTest, slots_of_several_chunks_have_different_tokens) {
  std::vector<PostSlots::Hold> held;
  std::set<std::uint64_t> tokens;
  for (std::size_t i = 0; i < 3 * PostSlots::chunk_slots; ++i)
    tokens.insert(held.emplace_back(take()).begin());
  EXPECT_EQ(tokens.size(), held.size());
  for (const std::uint64_t token : tokens) EXPECT_NE(slots.complete(token), nullptr);
}

TEST_F(PostSlotsTest, of_several_threads_that_complete_a_post_one_does_while_slots_come_and_go) {
  constexpr int rounds = 3000, threads = 3;
  std::atomic<std::uint64_t> present = 0;
  std::atomic<int> completed = 0;
  std::vector<std::jthread> completing;
  for (int t = 0; t < threads; ++t)
    completing.emplace_back([&](const std::stop_token& stop) {
      for (int looks = 1; !stop.stop_requested(); ++looks) {
        if (looks % 100 == 0) std::this_thread::yield();  // four threads spin, maybe on one core
        const std::uint64_t token = present;
        if (slots.complete(token) != nullptr) ++completed;
        if (slots.complete(token) != nullptr) ++completed;  // late: the slot may have another owner by now
      }
    });
  for (int i = 0; i < rounds; ++i) {
    auto slot = take();
    const std::uint64_t token = slot.begin();
    present = token;
    if (i % 2 == 0 && slots.complete(token) != nullptr) ++completed;
    while (completed == i) std::this_thread::yield();
    ASSERT_EQ(completed, i + 1);
  }
}

}  // namespace
}  // namespace headrace::engine
