// SPDX-License-Identifier: Apache-2.0
// Connection information that leads to another agent than the one that it is said to be of.
#include "backends/tcp/backend.hpp"
#include "support/plugin_instance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace headrace::tcp {
namespace {

using ::testing::HasSubstr;

TEST(TcpForgedMetadata, makes_no_link_to_an_agent_of_another_name) {
  test::World world;
  const auto open = [&](const char* name, std::uint64_t incarnation) {
    return std::make_unique<test::Instance>(
        world, plugin::table<TcpBackend>(), test::Settings{{"listen", "127.0.0.1:0"}},
        test::PluginHost::Args{.agent_name = name, .incarnation = incarnation});
  };
  const auto stranger = open("stranger", 1), initiator = open("initiator", 2);
  // The stranger's own address and incarnation, in another's name.
  const test::Link link = initiator->try_connect("peer", 1, stranger->connection_info()).value();
  EXPECT_TRUE(world.until([&] { return link.lost(); })) << world.describe();
  EXPECT_THAT(initiator->host().link(link.token())->lost_text, HasSubstr("\"peer\" was looked for"));
}

}  // namespace
}  // namespace headrace::tcp
