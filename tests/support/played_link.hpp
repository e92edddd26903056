// SPDX-License-Identifier: Apache-2.0
// A link of the tcp backend whose peer is played over one socket, and a request to that peer.
#pragma once

#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "support/played_socket.hpp"
#include "support/plugin_instance.hpp"

#include <stdexcept>

namespace headrace::test {

/// The members are made in their order.
struct PlayedLink {
  /// The request moves one page of `bytes` bytes.
  PlayedLink(headrace_op_v1 op, std::uint64_t bytes)
      : memory(Memory::Kind::plain, bytes, 1),
        request(instance, op, &link, uniform_side(mine.handle(), 0, bytes, bytes),
                uniform_side(theirs.handle(), 0, bytes, bytes), 1) {}

  World world;
  Instance instance{world, plugin::table<tcp::TcpBackend>(), {{"listen", "127.0.0.1:0"}}, PluginHost::Args{}};
  const PlayedSocket peer{address(), 0};
  const HostLink accepted = wait_for_link();
  Link link{instance, accepted.connection, accepted.token};
  const Memory memory;
  const Region mine{instance, memory};
  const Remote theirs{link, facts()};
  Request request;

 private:
  [[nodiscard]] SocketAddress address() const {
    const auto info = tcp::ConnectionInfo::parse(instance.connection_info()).value();
    return info.addresses.front().resolve(TcpAddress::Use::connect).value().front();
  }
  [[nodiscard]] HostLink wait_for_link() {
    if (!world.until([&] { return instance.host().accepted_links().size() == 1; }))
      throw std::runtime_error("the instance accepted no link: " + world.describe());
    return instance.host().accepted_links().front();
  }
  [[nodiscard]] RegionFacts facts() const {
    RegionFacts facts;
    facts.id = 1;
    facts.length = memory.bytes().size();
    return facts;
  }
};

}  // namespace headrace::test
