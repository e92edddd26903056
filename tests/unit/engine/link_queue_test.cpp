// SPDX-License-Identifier: Apache-2.0
#include "engine/link_queue.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace headrace::engine {
namespace {

using Answer = LinkQueue::Answer;

/// The queue never looks into a post: any address stands for one.
std::shared_ptr<RequestCore> post_at(int& address) {
  return {std::shared_ptr<void>(), reinterpret_cast<RequestCore*>(&address)};
}

TEST(LinkQueue, posts_wait_until_the_link_is_ready_and_leave_in_their_order) {
  LinkQueue queue;
  std::array<int, 3> posts{};
  for (int& post : posts) EXPECT_EQ(queue.add(post_at(post)), Answer::waits);
  queue.open();
  EXPECT_TRUE(queue.begin_handing_over());
  EXPECT_EQ(queue.add(post_at(posts[0])), Answer::pass);
  const auto waited = queue.take_posts();
  ASSERT_EQ(waited.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(waited[i], post_at(posts[i]));
  EXPECT_TRUE(queue.take_posts().empty());
}

TEST(LinkQueue, a_removed_post_is_not_handed_over) {
  LinkQueue queue;
  std::array<int, 2> posts{};
  for (int& post : posts) (void)queue.add(post_at(post));
  EXPECT_TRUE(queue.remove(*post_at(posts[0])));
  EXPECT_FALSE(queue.remove(*post_at(posts[0])));
  queue.open();
  EXPECT_EQ(queue.take_posts(), std::vector{post_at(posts[1])});
}

TEST(LinkQueue, a_message_waits_behind_those_that_wait_after_the_link_is_ready) {
  LinkQueue queue;
  EXPECT_EQ(queue.add(0, "first"), Answer::waits);
  queue.open();
  EXPECT_TRUE(queue.begin_handing_over());
  EXPECT_EQ(queue.add(0, "second"), Answer::waits) << "the first has not been sent";
  auto next = queue.next_message(0);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->bytes, "first");
  EXPECT_EQ(queue.add(0, "third"), Answer::waits) << "the first is on its way, and may come back";
  queue.put_back(*std::move(next));
  for (const char* const expected : {"first", "second", "third"})
    EXPECT_EQ(queue.next_message(0)->bytes, expected);
  EXPECT_FALSE(queue.next_message(0));
  EXPECT_EQ(queue.add(0, "fourth"), Answer::pass);
}

TEST(LinkQueue, messages_of_one_channel_do_not_wait_for_those_of_the_other) {
  LinkQueue queue;
  EXPECT_EQ(queue.add(0, "a user's"), Answer::waits);
  EXPECT_EQ(queue.add(1, "an agent's"), Answer::waits);
  queue.open();
  EXPECT_TRUE(queue.begin_handing_over());
  EXPECT_EQ(queue.next_message(1)->bytes, "an agent's");
  EXPECT_FALSE(queue.next_message(1));
  EXPECT_EQ(queue.add(1, "another"), Answer::pass);
  EXPECT_EQ(queue.add(0, "behind"), Answer::waits);
}

TEST(LinkQueue, nothing_waits_if_the_link_is_ready_before_it_comes) {
  LinkQueue queue;
  queue.open();
  EXPECT_FALSE(queue.begin_handing_over());
  EXPECT_EQ(queue.add(0, "message"), Answer::pass);
}

TEST(LinkQueue, beyond_its_bounds_it_is_full) {
  LinkQueue queue;
  int post = 0;
  for (std::size_t i = 0; i < LinkQueue::most_posts; ++i) ASSERT_EQ(queue.add(post_at(post)), Answer::waits);
  EXPECT_EQ(queue.add(post_at(post)), Answer::full);
  const std::string most(LinkQueue::most_message_bytes, 'x');
  EXPECT_EQ(queue.add(0, most), Answer::waits);
  EXPECT_EQ(queue.add(0, "x"), Answer::full);
  queue.open();
  EXPECT_EQ(queue.next_message(0)->bytes.size(), most.size());
  EXPECT_EQ(queue.add(0, "x"), Answer::waits) << "there is room again";
}

TEST(LinkQueue, a_message_that_is_put_back_leaves_no_room_for_others) {
  LinkQueue queue;
  const std::string half(LinkQueue::most_message_bytes / 2, 'x');
  EXPECT_EQ(queue.add(0, half), Answer::waits);
  EXPECT_EQ(queue.add(0, half), Answer::waits);
  queue.open();
  auto taken = queue.next_message(0);
  EXPECT_EQ(queue.add(0, half), Answer::waits) << "meanwhile there was room";
  queue.put_back(*std::move(taken));
  EXPECT_EQ(queue.add(0, half), Answer::full);
  EXPECT_EQ(queue.add(0, "x"), Answer::full);
}

TEST(LinkQueue, a_closed_queue_returns_what_waited_and_keeps_nothing) {
  LinkQueue queue;
  int post = 0;
  (void)queue.add(post_at(post));
  (void)queue.add(1, "message");
  const LinkQueue::Left left = queue.close();
  EXPECT_EQ(left.posts, std::vector{post_at(post)});
  ASSERT_EQ(left.messages.size(), 1U);
  EXPECT_EQ(left.messages.front().channel, 1U);
  EXPECT_EQ(queue.add(post_at(post)), Answer::pass);
  EXPECT_EQ(queue.add(1, "message"), Answer::pass);
}

TEST(LinkQueue, one_thread_at_a_time_hands_over_until_nothing_waits) {
  LinkQueue queue;
  (void)queue.add(0, "message");
  EXPECT_FALSE(queue.begin_handing_over()) << "the link is not ready";
  queue.open();
  EXPECT_TRUE(queue.begin_handing_over());
  EXPECT_FALSE(queue.begin_handing_over());
  EXPECT_FALSE(queue.end_handing_over());
  EXPECT_TRUE(queue.next_message(0));
  EXPECT_FALSE(queue.messages_have_left()) << "it is on its way to the backend, and may come back";
  EXPECT_FALSE(queue.next_message(0));
  EXPECT_TRUE(queue.messages_have_left());
  EXPECT_TRUE(queue.end_handing_over());
  EXPECT_FALSE(queue.begin_handing_over());
}

TEST(LinkQueue, messages_of_another_link_wait_behind_its_own_and_keep_later_ones_out) {
  LinkQueue queue;
  queue.open();
  std::vector<LinkQueue::Message> left{{0, "first"}, {0, "second"}};
  ASSERT_TRUE(queue.adopt(left));
  EXPECT_FALSE(queue.messages_have_left());
  EXPECT_TRUE(queue.begin_handing_over());
  EXPECT_EQ(queue.add(0, "third"), Answer::full) << "it would take the credit of the first";
  EXPECT_EQ(queue.add(1, "an agent's"), Answer::pass);
  auto next = queue.next_message(0);
  EXPECT_EQ(next->bytes, "first");
  EXPECT_FALSE(next->has_credit);
  queue.put_back(*std::move(next));
  for (const char* const expected : {"first", "second"}) EXPECT_EQ(queue.next_message(0)->bytes, expected);
  EXPECT_EQ(queue.add(0, "third"), Answer::waits) << "the second may come back";
  EXPECT_EQ(queue.next_message(0)->bytes, "third");
  EXPECT_FALSE(queue.next_message(0));
  EXPECT_EQ(queue.add(0, "fourth"), Answer::pass);
}

TEST(LinkQueue, a_closed_queue_adopts_nothing) {
  LinkQueue queue;
  (void)queue.close();
  std::vector<LinkQueue::Message> left{{0, "message"}};
  EXPECT_FALSE(queue.adopt(left));
  EXPECT_EQ(left.front().bytes, "message");
}

TEST(LinkQueue, messages_of_a_thread_stay_in_order_while_another_thread_hands_over) {
  LinkQueue queue;
  constexpr int messages = 2000;
  int passed = 0;  // the messages that passed come after all that waited
  std::atomic<bool> opened = false;
  std::thread sender([&] {
    for (int i = 0; i < messages; ++i) {
      if (i == messages / 4) opened = true;
      const Answer answer = queue.add(0, std::to_string(i));
      ASSERT_NE(answer, Answer::full);
      ASSERT_TRUE(passed == 0 || answer == Answer::pass) << "message " << i;
      if (answer == Answer::pass) ++passed;
    }
  });
  while (!opened) std::this_thread::yield();
  queue.open();
  int taken = 0;
  while (const auto next = queue.next_message(0)) EXPECT_EQ(next->bytes, std::to_string(taken++));
  sender.join();
  EXPECT_EQ(taken + passed, messages);
}

}  // namespace
}  // namespace headrace::engine
