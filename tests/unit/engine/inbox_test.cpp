// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.hpp"

#include <gtest/gtest.h>
#include <poll.h>

namespace headrace::engine {
namespace {

TEST(Inbox, a_notification_that_arrives_over_two_paths_is_delivered_once) {
  Inbox inbox(10, 1000);
  EXPECT_TRUE(inbox.put({5, 1, 1}, {"a", "x"}));
  EXPECT_TRUE(inbox.put({5, 1, 1}, {"a", "x"}));
  EXPECT_TRUE(inbox.put({5, 1, 2}, {"a", "y"}));
  EXPECT_TRUE(inbox.put({6, 1, 1}, {"a", "z"})) << "another life has its own numbers";
  EXPECT_EQ(inbox.take({}).size(), 3u);
}

TEST(Inbox, what_one_life_claims_does_not_make_another_forget) {
  Inbox inbox(1 << 20, 1 << 20);
  EXPECT_TRUE(inbox.put({5, 1, 1}, {"a", "x"}));
  for (std::uint64_t request = 1; request < 40'000; ++request)
    EXPECT_TRUE(inbox.put({6, request, UINT64_MAX}, {"b", ""}));
  (void)inbox.take({});
  EXPECT_TRUE(inbox.put({5, 1, 1}, {"a", "x"}));
  EXPECT_TRUE(inbox.put({5, 1, 2}, {"a", "y"}));
  EXPECT_EQ(inbox.take({}).size(), 1U) << "the first is known still, and the second is new";
}

TEST(Inbox, notifications_without_a_request_are_never_taken_for_duplicates) {
  Inbox inbox(10, 1000);
  EXPECT_TRUE(inbox.put({5, 0, 0}, {"a", "x"}));
  EXPECT_TRUE(inbox.put({5, 0, 0}, {"a", "x"}));
  EXPECT_EQ(inbox.take({}).size(), 2u);
}

TEST(Inbox, a_full_inbox_refuses_a_notification) {
  Inbox inbox(2, 1000);
  EXPECT_TRUE(inbox.put({}, {"a", "1"}));
  EXPECT_TRUE(inbox.put({}, {"a", "2"}));
  EXPECT_FALSE(inbox.put({}, {"a", "3"}));
}

TEST(Inbox, a_filter_takes_by_peer_and_prefix_and_keeps_the_order_of_the_rest) {
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

TEST(Inbox, the_descriptor_is_readable_while_a_notification_waits) {
  Inbox inbox(10, 1000);
  inbox.put({}, {"a", "1"});
  pollfd fd{*inbox.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&fd, 1, 0), 1);
  (void)inbox.take({});
  EXPECT_EQ(::poll(&fd, 1, 0), 0);
  inbox.put({}, {"a", "2"});
  EXPECT_EQ(::poll(&fd, 1, 0), 1);
}

TEST(Inbox, the_inbox_keeps_its_limit_of_bytes_and_has_room_again_after_a_take) {
  Inbox inbox(10, 100);
  EXPECT_TRUE(inbox.put({}, {"a", std::string(60, 'x')}));
  EXPECT_FALSE(inbox.put({}, {"a", std::string(60, 'y')}));
  EXPECT_TRUE(inbox.put({}, {"a", std::string(40, 'z')}));
  ASSERT_TRUE(inbox.take_one({"", std::string(60, 'x')}));
  EXPECT_TRUE(inbox.put({}, {"a", std::string(60, 'y')}));
  EXPECT_EQ(inbox.take({}).size(), 2U);
  EXPECT_TRUE(inbox.put({}, {"a", std::string(1000, 'w')}))
      << "an empty inbox takes one notification of any size";
}

}  // namespace
}  // namespace headrace::engine
