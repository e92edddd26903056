// SPDX-License-Identifier: Apache-2.0
// A region that goes away while a peer has its bytes in the socket: against a peer that is played byte by
// byte.
#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "support/played_socket.hpp"
#include "support/plugin_instance.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace headrace::tcp {
namespace {

/// An instance, and a peer that reads a region of it and leaves the answer in its socket.
class Deregistering : public ::testing::Test {
 protected:
  static constexpr std::uint64_t length = 16 << 20;  // more than the sockets hold

  Deregistering() {
    const auto info = ConnectionInfo::parse(instance.connection_info());
    peer = std::make_unique<test::PlayedSocket>(
        info.value().addresses.front().resolve(TcpAddress::Use::connect).value().front(), 0);
    region = std::make_unique<test::Region>(instance, memory);
    peer->read_from(region->facts().id, length);
    header = peer->hear_header();
    EXPECT_EQ(header.type, FrameType::read_data);
    EXPECT_EQ(header.payload, length);
  }

  test::World world;
  test::Instance instance{world,
                          plugin::table<TcpBackend>(),
                          {{"listen", "127.0.0.1:0"}, {"socket_buffer", "64KiB"}},
                          test::PluginHost::Args{}};
  const test::Memory memory{test::Memory::Kind::plain, length, 1};
  std::unique_ptr<test::PlayedSocket> peer;
  std::unique_ptr<test::Region> region;
  FrameHeader header;
};

TEST_F(Deregistering, does_not_wait_for_the_peer_which_gets_what_it_read_as_it_was) {
  const std::string before(reinterpret_cast<const char*>(memory.bytes().data()), length);
  region = nullptr;
  std::memset(const_cast<std::byte*>(memory.bytes().data()), '!', length);  // it is used for something else
  EXPECT_TRUE(peer->hear_payload(header) == before);
}

}  // namespace
}  // namespace headrace::tcp
