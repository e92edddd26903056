// SPDX-License-Identifier: Apache-2.0
#include "transport/post_message.hpp"

#include "support/plugin_host.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::transport {
namespace {

headrace_post_v1 posted(std::optional<std::string_view> message, bool counted) {
  headrace_post_v1 args{};
  args.struct_size = sizeof args;
  if (message) {
    args.has_message = 1;
    args.channel = 7;
    args.message = {message->data(), message->size()};
  }
  if (counted) {
    args.has_immediate = 1;
    args.scope = 3;
    args.immediate = 4;
  }
  return args;
}

/// Sends the message of the post to a host of its own.
struct Journey {
  explicit Journey(const headrace_post_v1& args) {
    link = host.new_link("peer", 1);
    if (auto message = message_of(args))
      tell(plugin::Host(host.table()), link, {message->channel, message->counted, std::move(message->bytes)});
  }
  ~Journey() { EXPECT_EQ(host.broken_rules(), std::vector<std::string>()); }

  test::PluginHost host{{}};
  std::uint64_t link = 0;
};

TEST(PostMessage, a_message_and_an_immediate_arrive_together) {
  const Journey journey(posted("hello", true));
  ASSERT_EQ(journey.host.message_count(), 1U);
  EXPECT_EQ(journey.host.messages()[0].bytes, "hello");
  EXPECT_EQ(journey.host.messages()[0].channel, 7U);
  EXPECT_EQ(journey.host.count_of(3, 4), 1U);
}

TEST(PostMessage, a_message_alone_is_not_counted_though_it_is_empty) {
  const Journey journey(posted("", false));
  ASSERT_EQ(journey.host.message_count(), 1U);
  EXPECT_EQ(journey.host.messages()[0].bytes, "");
  EXPECT_EQ(journey.host.count_of(3, 4), 0U);
}

TEST(PostMessage, an_immediate_alone_is_no_message) {
  const Journey journey(posted(std::nullopt, true));
  EXPECT_EQ(journey.host.message_count(), 0U);
  EXPECT_EQ(journey.host.count_of(3, 4), 1U);
}

TEST(PostMessage, a_post_without_either_sends_nothing) {
  EXPECT_FALSE(message_of(posted(std::nullopt, false)));
}

TEST(PostMessage, the_users_channels_end_before_that_of_counts) {
  EXPECT_TRUE(may_be_sent(0, max_message_bytes));
  EXPECT_FALSE(may_be_sent(0, max_message_bytes + 1));
  EXPECT_TRUE(may_be_sent(count_channel - 1, 0));
  EXPECT_FALSE(may_be_sent(count_channel, 0));
  EXPECT_FALSE(may_be_sent(65'536, 0));
}

}  // namespace
}  // namespace headrace::transport
