// SPDX-License-Identifier: Apache-2.0
// Which socket a small request takes.
#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "backends/tcp/played_socket.hpp"
#include "support/plugin_instance.hpp"

#include <gtest/gtest.h>

namespace headrace::tcp {
namespace {

TEST(SmallRequests, one_after_the_other_take_one_socket_and_at_once_one_each) {
  constexpr std::uint64_t page = 4096;
  test::World world;
  test::Instance instance(world, plugin::table<TcpBackend>(), {{"listen", "127.0.0.1:0"}}, test::PluginHost::Args{});
  const auto address = ConnectionInfo::parse(instance.connection_info()).value().addresses.front();
  const SocketAddress to = address.resolve(TcpAddress::Use::connect).value().front();
  const PlayedSocket first(to, 0);
  ASSERT_TRUE(world.until([&] { return instance.host().accepted_links().size() == 1; }));
  const auto accepted = instance.host().accepted_links().front();
  test::Link link(instance, accepted.connection, accepted.token);
  const PlayedSocket second(to, 1);
  second.say(FrameType::ping);
  (void)second.hear(FrameType::pong);  // it is one of the link's

  const test::Memory memory(test::Memory::Kind::plain, page, 1);
  const test::Region mine(instance, memory);
  test::RegionFacts facts;
  facts.id = 1;
  facts.length = page;
  const test::Remote theirs(link, facts);
  const auto make = [&] {
    return std::make_unique<test::Request>(instance, HEADRACE_WRITE, &link, test::uniform_side(mine.handle(), 0, page, page),
                                           test::uniform_side(theirs.handle(), 0, page, page), 1);
  };
  const auto one = make();
  for (int turn = 0; turn < 4; ++turn) {
    one->post();
    first.acknowledge(first.hear(FrameType::write));
    EXPECT_TRUE(one->wait().status.ok());
  }
  // Until the first has its answer the second goes elsewhere.
  const auto other = make();
  one->post();
  other->post();
  const FrameHeader here = first.hear(FrameType::write);
  second.acknowledge(second.hear(FrameType::write));
  EXPECT_TRUE(other->wait().status.ok());
  // And stays there: that socket is the one that is awake now.
  other->post();
  second.acknowledge(second.hear(FrameType::write));
  EXPECT_TRUE(other->wait().status.ok());
  first.acknowledge(here);
  EXPECT_TRUE(one->wait().status.ok());
  link.disconnect();
}

}  // namespace
}  // namespace headrace::tcp
