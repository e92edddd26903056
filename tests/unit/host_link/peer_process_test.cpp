// SPDX-License-Identifier: Apache-2.0
#include "host_link/peer_process.hpp"

#include "base/clock.hpp"
#include "support/temporary_folder.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace headrace::host_link {
namespace {

class PeerProcessTest : public ::testing::Test {
 protected:
  PeerProcess behind_the_next_connection() {
    pollfd door{listener_.fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&door, 1, 10'000), 1);
    return PeerProcess::of(listener_.accept().value()).value();
  }

  const test::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/a.sock";
  UnixListener listener_ = UnixListener::listen(path_).value();
};

TEST_F(PeerProcessTest, the_peer_of_a_connection_from_this_process_is_this_process) {
  const UnixSocket socket = UnixSocket::connect(path_).value();
  const PeerProcess self = behind_the_next_connection();
  EXPECT_EQ(self.pid(), ::getpid());
  EXPECT_EQ(self.uid(), ::geteuid());
  EXPECT_TRUE(self.is_this_one());
  EXPECT_FALSE(self.dying());
  EXPECT_TRUE(self.still_there());
}

TEST_F(PeerProcessTest, a_killed_peer_is_dying_and_then_gone) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto socket = UnixSocket::connect(path_);
    for (;;) ::pause();
  }
  const PeerProcess peer = behind_the_next_connection();
  EXPECT_EQ(peer.pid(), child);
  EXPECT_FALSE(peer.is_this_one());
  EXPECT_FALSE(peer.dying());
  EXPECT_TRUE(peer.still_there());
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  const Deadline soon = Deadline::after(std::chrono::seconds(10));
  while (!(peer.dying() && !peer.still_there()) && !soon.expired()) std::this_thread::yield();
  EXPECT_TRUE(peer.dying());
  EXPECT_FALSE(peer.still_there());
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(peer.dying());
}

}  // namespace
}  // namespace headrace::host_link
