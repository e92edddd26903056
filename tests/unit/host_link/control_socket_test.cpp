// SPDX-License-Identifier: Apache-2.0
#include "host_link/control_socket.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

namespace headrace::host_link {
namespace {

constexpr Protocol protocol{.backend = "test", .control_magic = 0x54534554};

struct Ends {
  Ends() {
    std::array<int, 2> fds{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()), 0);
    here.emplace(protocol, UnixSocket::adopt(UniqueFd(fds[0])).value());
    there.emplace(protocol, UnixSocket::adopt(UniqueFd(fds[1])).value());
  }
  /// Sends messages until the socket is full and one message waits; returns their number.
  std::uint16_t fill() {
    std::uint16_t count = 0;
    for (; !here->blocked() && count < 10'000; ++count)
      here->send(Other{static_cast<std::uint16_t>(100 + count), ""});
    EXPECT_TRUE(here->blocked());
    return count;
  }
  /// The types of all messages that arrive while `here` sends its waiting messages.
  std::vector<std::uint16_t> read_all() {
    std::vector<std::uint16_t> types;
    for (;;) {
      auto received = there->receive();
      if (received)
        types.push_back(std::get<Other>(received->message).type);
      else if (here->blocked())
        here->flush();
      else
        return types;
    }
  }
  std::optional<ControlSocket> here, there;
};

TEST(ControlSocket, a_waiting_message_can_be_taken_back_and_the_rest_are_sent_in_order) {
  Ends ends;
  std::vector<std::uint16_t> expected;
  const std::uint16_t count = ends.fill();
  for (std::uint16_t i = 0; i < count; ++i) expected.push_back(static_cast<std::uint16_t>(100 + i));
  for (std::uint16_t name = 1; name <= 6; ++name)
    ends.here->send(Other{static_cast<std::uint16_t>(20'000 + name), ""}, {}, {}, name);
  for (const MessageName name : {1, 4, 6}) {
    EXPECT_TRUE(ends.here->waits(name));
    EXPECT_TRUE(ends.here->take_back(name));
    EXPECT_FALSE(ends.here->waits(name));
    EXPECT_FALSE(ends.here->take_back(name));
  }
  expected.insert(expected.end(), {20'002, 20'003, 20'005});
  EXPECT_EQ(ends.read_all(), expected);
  for (const MessageName name : {2, 3, 5})
    EXPECT_FALSE(ends.here->take_back(name)) << "the message has been sent";
}

TEST(ControlSocket, a_message_that_was_sent_at_once_cannot_be_taken_back) {
  Ends ends;
  ends.here->send(Other{100, ""}, {}, {}, 7);
  EXPECT_FALSE(ends.here->waits(7));
  EXPECT_FALSE(ends.here->take_back(7));
  EXPECT_EQ(ends.read_all(), std::vector<std::uint16_t>{100});
}

TEST(ControlSocket, a_message_that_is_taken_back_releases_its_descriptors) {
  Ends ends;
  (void)ends.fill();
  auto file = std::make_shared<const UniqueFd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::weak_ptr<const UniqueFd> seen = file;
  const int fd = file->get();
  ends.here->send(Other{30'000, ""}, {fd}, {std::move(file)}, 1);
  EXPECT_FALSE(seen.expired());
  EXPECT_TRUE(ends.here->take_back(1));
  EXPECT_TRUE(seen.expired());
}

TEST(ControlSocket, waiting_messages_are_dropped_when_the_peer_is_gone) {
  Ends ends;
  (void)ends.fill();
  ends.here->send(Other{30'000, ""}, {}, {}, 1);
  ends.there.reset();
  ends.here->flush();
  EXPECT_FALSE(ends.here->waits(1));
  EXPECT_FALSE(ends.here->take_back(1));
}

}  // namespace
}  // namespace headrace::host_link
