// SPDX-License-Identifier: Apache-2.0
// How much of a request a socket takes: its share of what is left, counted by the sockets that there are.
#include "support/played_link.hpp"

#include <gtest/gtest.h>

namespace headrace::tcp {
namespace {

TEST(Share, of_the_one_socket_of_a_link_that_came_in_is_all) {
  constexpr std::uint64_t length = 8 << 20;
  test::PlayedLink played(HEADRACE_WRITE, length);
  played.request.post();
  const FrameHeader first = played.peer.hear(FrameType::write);
  EXPECT_EQ(first.payload, 1U << 20)
      << "the longest chunk: most of the request is left, and no other socket could take it";
  played.link.disconnect();
}

}  // namespace
}  // namespace headrace::tcp
