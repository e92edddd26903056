// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.hpp"

#include <gtest/gtest.h>
#include <poll.h>

namespace headrace::engine {
namespace {

TEST(Inbox, delivers_a_message_that_came_over_two_paths_once) {
  Inbox inbox(10, 1000);
  EXPECT_TRUE(inbox.put({5, 1, 1}, {"a", "x"}));
  EXPECT_TRUE(inbox.put({5, 1, 1}, {"a", "x"}));
  EXPECT_TRUE(inbox.put({5, 1, 2}, {"a", "y"}));
  EXPECT_TRUE(inbox.put({6, 1, 1}, {"a", "z"})) << "another life counts anew";
  EXPECT_EQ(inbox.take({}).size(), 3u);
}

TEST(Inbox, messages_of_their_own_are_never_taken_for_one_another) {
  Inbox inbox(10, 1000);
  EXPECT_TRUE(inbox.put({5, 0, 0}, {"a", "x"}));
  EXPECT_TRUE(inbox.put({5, 0, 0}, {"a", "x"}));
  EXPECT_EQ(inbox.take({}).size(), 2u);
}

TEST(Inbox, says_when_it_is_full) {
  Inbox inbox(2, 1000);
  EXPECT_TRUE(inbox.put({}, {"a", "1"}));
  EXPECT_TRUE(inbox.put({}, {"a", "2"}));
  EXPECT_FALSE(inbox.put({}, {"a", "3"}));
}

TEST(Inbox, picks_by_peer_and_prefix_and_keeps_the_order_of_the_rest) {
  Inbox inbox(10, 1000);
  inbox.put({}, {"a", "k1"});
  inbox.put({}, {"b", "k2"});
  inbox.put({}, {"a", "other"});
  EXPECT_EQ(inbox.take_one({"a", "k"})->payload, "k1");
  EXPECT_FALSE(inbox.take_one({"a", "k"}).has_value());
  const auto rest = inbox.take({});
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest[0].payload, "k2");
  EXPECT_EQ(rest[1].payload, "other");
}

TEST(Inbox, its_descriptor_is_readable_while_something_waits) {
  Inbox inbox(10, 1000);
  inbox.put({}, {"a", "1"});
  pollfd fd{*inbox.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&fd, 1, 0), 1);
  (void)inbox.take({});
  EXPECT_EQ(::poll(&fd, 1, 0), 0);
  inbox.put({}, {"a", "2"});
  EXPECT_EQ(::poll(&fd, 1, 0), 1);
}

TEST(Inbox, takes_no_more_bytes_than_it_may_and_more_again_once_they_are_taken) {
  Inbox inbox(10, 100);
  EXPECT_TRUE(inbox.put({}, {"a", std::string(60, 'x')}));
  EXPECT_FALSE(inbox.put({}, {"a", std::string(60, 'y')}));
  EXPECT_TRUE(inbox.put({}, {"a", std::string(40, 'z')}));
  ASSERT_TRUE(inbox.take_one({"", std::string(60, 'x')}));
  EXPECT_TRUE(inbox.put({}, {"a", std::string(60, 'y')}));
  EXPECT_EQ(inbox.take({}).size(), 2U);
  EXPECT_TRUE(inbox.put({}, {"a", std::string(1000, 'w')})) << "one alone is taken whatever its size";
}

}  // namespace
}  // namespace headrace::engine
