// SPDX-License-Identifier: Apache-2.0
#include "engine/agent_messages.hpp"
#include "unit/engine/parts.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace::engine {
namespace {

const headrace_backend_v1 backend_of_messages = recording_table("first");

class AgentMessagesTest : public testing::Test {
 protected:
  Parts parts;
  BackendInstance& backend = parts.add(backend_of_messages);
  const std::shared_ptr<Link> first = parts.ready_link(parts.import("first"), backend),
                              second = parts.ready_link(parts.import("second"), backend);
  std::vector<std::string> handled;
  AgentMessages messages{*parts.progress, [this](const auto& link, std::string_view bytes) {
                           handled.push_back((link == first ? "1:" : "2:") + std::string(bytes));
                         }};
};

TEST_F(AgentMessagesTest, messages_are_handled_in_the_order_of_their_link) {
  for (const char* const text : {"a", "b", "c"}) EXPECT_TRUE(messages.add(first, text));
  EXPECT_TRUE(handled.empty()) << "this may be inside a backend's call";
  (void)parts.progress->poll();
  EXPECT_EQ(handled, (std::vector<std::string>{"1:a", "1:b", "1:c"}));
  EXPECT_TRUE(messages.add(first, "d"));
  (void)parts.progress->poll();
  EXPECT_EQ(handled.back(), "1:d");
}

TEST_F(AgentMessagesTest, a_pass_handles_a_few_of_a_flood_and_of_each_link_in_turn) {
  constexpr std::size_t flood = 1000;
  for (std::size_t i = 0; i < flood; ++i) ASSERT_TRUE(messages.add(first, "a"));
  ASSERT_TRUE(messages.add(second, "b"));
  (void)parts.progress->poll();
  EXPECT_EQ(handled.size(), static_cast<std::size_t>(AgentMessages::in_one_pass));
  EXPECT_EQ(handled[1], "2:b");
  for (std::size_t passes = 1; handled.size() <= flood && passes < flood; ++passes)
    (void)parts.progress->poll();
  EXPECT_EQ(handled.size(), flood + 1);
}

TEST_F(AgentMessagesTest, beyond_the_bounds_a_message_is_refused_and_that_of_another_link_is_not) {
  for (std::size_t i = 0; i < AgentMessages::most_messages; ++i) ASSERT_TRUE(messages.add(first, ""));
  EXPECT_FALSE(messages.add(first, ""));
  const std::string large(AgentMessages::most_bytes / 2, 'x');
  EXPECT_TRUE(messages.add(second, large));
  EXPECT_TRUE(messages.add(second, large));
  EXPECT_FALSE(messages.add(second, "x"));
  (void)parts.progress->poll();
  EXPECT_TRUE(messages.add(first, "")) << "some have been handled";
}

}  // namespace
}  // namespace headrace::engine
