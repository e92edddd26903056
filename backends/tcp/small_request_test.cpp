// SPDX-License-Identifier: Apache-2.0
// Which socket a small request takes.
#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "support/played_socket.hpp"
#include "support/plugin_instance.hpp"

#include <poll.h>

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <utility>

namespace headrace::tcp {
namespace {

/// Two sockets of one link, of which either may speak next.
struct Pair {
  test::PlayedSocket first, second;

  struct Heard {
    const test::PlayedSocket* socket = nullptr;
    FrameHeader header;
  };
  [[nodiscard]] Heard hear_write() const {
    for (;;) {
      std::array<pollfd, 2> ready{pollfd{first.fd(), POLLIN, 0}, pollfd{second.fd(), POLLIN, 0}};
      if (::poll(ready.data(), ready.size(), 30'000) <= 0)
        throw std::runtime_error("neither socket says anything");
      const test::PlayedSocket& socket = ready[0].revents != 0 ? first : second;
      if (const FrameHeader header = socket.hear(); header.type == FrameType::write) return {&socket, header};
    }
  }
};

// A socket whose thread looks for work just then, after a heartbeat for instance, may take what another was
// to have: so the rule is looked at often, and has to hold nearly always.
TEST(SmallRequests, one_after_the_other_take_one_socket_and_at_once_one_each) {
  constexpr std::uint64_t page = 4096;
  constexpr int turns = 40, nearly_all = 30;
  test::World world;
  test::Instance instance(world, plugin::table<TcpBackend>(), {{"listen", "127.0.0.1:0"}},
                          test::PluginHost::Args{});
  const auto address = ConnectionInfo::parse(instance.connection_info()).value().addresses.front();
  const SocketAddress to = address.resolve(TcpAddress::Use::connect).value().front();
  test::PlayedSocket first(to, 0);
  ASSERT_TRUE(world.until([&] { return instance.host().accepted_links().size() == 1; }));
  const auto accepted = instance.host().accepted_links().front();
  test::Link link(instance, accepted.connection, accepted.token);
  const Pair peer{std::move(first), test::PlayedSocket(to, 1)};
  peer.second.say(FrameType::ping);
  (void)peer.second.hear(FrameType::pong);  // it is one of the link's

  const test::Memory memory(test::Memory::Kind::plain, page, 1);
  const test::Region mine(instance, memory);
  test::RegionFacts facts;
  facts.id = 1;
  facts.length = page;
  const test::Remote theirs(link, facts);
  const auto make = [&] {
    return std::make_unique<test::Request>(instance, HEADRACE_WRITE, &link,
                                           test::uniform_side(mine.handle(), 0, page, page),
                                           test::uniform_side(theirs.handle(), 0, page, page), 1);
  };
  const auto one = make(), other = make();
  int same = 0;
  const test::PlayedSocket* last = nullptr;
  for (int turn = 0; turn < turns; ++turn) {
    one->post();
    const Pair::Heard heard = peer.hear_write();
    same += std::exchange(last, heard.socket) == heard.socket ? 1 : 0;
    heard.socket->acknowledge(heard.header);
    EXPECT_TRUE(one->wait().status.ok());
  }
  EXPECT_GE(same, nearly_all) << "the socket that is awake";

  int apart = 0;
  for (int turn = 0; turn < turns; ++turn) {
    one->post();
    other->post();
    const Pair::Heard here = peer.hear_write(), there = peer.hear_write();
    apart += here.socket != there.socket ? 1 : 0;
    here.socket->acknowledge(here.header);
    there.socket->acknowledge(there.header);
    EXPECT_TRUE(one->wait().status.ok() && other->wait().status.ok());
  }
  EXPECT_GE(apart, nearly_all) << "while the first has no answer, the second goes elsewhere";
  link.disconnect();
}

}  // namespace
}  // namespace headrace::tcp
