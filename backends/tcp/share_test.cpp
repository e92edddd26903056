// SPDX-License-Identifier: Apache-2.0
// How much of a request a socket takes: its share of what is left, counted by the sockets that there are.
#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "support/played_socket.hpp"
#include "support/plugin_instance.hpp"

#include <gtest/gtest.h>

namespace headrace::tcp {
namespace {

TEST(Share, of_the_one_socket_of_a_link_that_came_in_is_all) {
  constexpr std::uint64_t length = 8 << 20;
  test::World world;
  test::Instance instance(world, plugin::table<TcpBackend>(), {{"listen", "127.0.0.1:0"}},
                          test::PluginHost::Args{});
  const auto info = ConnectionInfo::parse(instance.connection_info());
  const test::PlayedSocket peer(
      info.value().addresses.front().resolve(TcpAddress::Use::connect).value().front(), 0);
  ASSERT_TRUE(world.until([&] { return instance.host().accepted_links().size() == 1; }));
  const auto accepted = instance.host().accepted_links().front();
  test::Link link(instance, accepted.connection, accepted.token);
  const test::Memory memory(test::Memory::Kind::plain, length, 1);
  const test::Region mine(instance, memory);
  test::RegionFacts facts;
  facts.id = 1;
  facts.length = length;
  const test::Remote theirs(link, facts);
  test::Request request(instance, HEADRACE_WRITE, &link, test::uniform_side(mine.handle(), 0, length, length),
                        test::uniform_side(theirs.handle(), 0, length, length), 1);
  request.post();
  const FrameHeader first = peer.hear(FrameType::write);
  EXPECT_EQ(first.payload, 1U << 20)
      << "the longest chunk: most of the request is left, and no other socket could take it";
  link.disconnect();
}

}  // namespace
}  // namespace headrace::tcp
