// SPDX-License-Identifier: Apache-2.0
#include "host_link/peer_process.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace headrace::host_link {
namespace {

TEST(PeerProcess, is_dying_once_it_is_killed) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  auto ours = UnixSocket::adopt(UniqueFd(fds[0])).value();
  UniqueFd theirs(fds[1]);
  // A socketpair's peer is its maker: ourselves.
  const PeerProcess self = PeerProcess::of(ours).value();
  EXPECT_EQ(self.pid(), ::getpid());
  EXPECT_TRUE(self.is_this_one());
  EXPECT_FALSE(self.dying());
  EXPECT_TRUE(self.still_there());
}

}  // namespace
}  // namespace headrace::host_link
