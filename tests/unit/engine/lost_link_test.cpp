// SPDX-License-Identifier: Apache-2.0
// Posts in flight on a link that this engine closes: backends end them as canceled, and nobody has canceled
// them.
#include "unit/engine/deaf_peer.hpp"

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

class LostLinkTest : public DeafPeer {
 protected:
  LostLinkTest() { Deaf::ends_posts_of_closed_links = true; }
};

TEST_F(LostLinkTest, a_post_to_a_peer_that_leaves_ends_with_peer_lost_and_its_name) {
  const auto request = make(1);
  ASSERT_TRUE(request->post(nullptr).ok());
  receive(wire::Goodbye{});
  while (engine->progress().poll() != 0) {
  }
  ASSERT_EQ(Deaf::token, 0U) << "the link is closed";
  EXPECT_EQ(request->wait(0ns).code, Code::peer_lost);
  EXPECT_NE(request->error().message.find("there"), std::string::npos) << request->error().message;
}

TEST_F(LostLinkTest, a_post_to_a_peer_that_is_forgotten_ends_canceled) {
  const auto request = make(1);
  ASSERT_TRUE(request->post(nullptr).ok());
  ASSERT_TRUE(engine->peers().forget("there").ok());
  (void)engine->progress().poll();
  EXPECT_EQ(request->wait(0ns).code, Code::canceled);
}

}  // namespace
}  // namespace headrace::engine
