// SPDX-License-Identifier: Apache-2.0
#include "engine/post_life.hpp"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

TEST(PostLife, a_post_begins_if_none_is_under_way_and_has_the_next_number) {
  PostLife life;
  RequestState before{};
  EXPECT_TRUE(life.begin(before));
  EXPECT_EQ(before, RequestState::prepared);
  EXPECT_EQ(life.post(), 1U);
  EXPECT_FALSE(life.begin(before));
  life.set(RequestState::failed);
  EXPECT_TRUE(life.begin(before));
  EXPECT_EQ(before, RequestState::failed);
  EXPECT_EQ(life.post(), 2U);
}

TEST(PostLife, a_change_that_means_an_earlier_post_does_nothing) {
  PostLife life;
  RequestState before{};
  ASSERT_TRUE(life.begin(before));
  life.set(RequestState::done);
  ASSERT_TRUE(life.begin(before));
  EXPECT_FALSE(life.change(1, RequestState::posted, RequestState::canceling));
  EXPECT_EQ(life.state(), RequestState::posted);
  EXPECT_TRUE(life.change(2, RequestState::posted, RequestState::canceling));
  EXPECT_EQ(life.now().state, RequestState::canceling);
  EXPECT_EQ(life.now().post, 2U);
}

TEST(PostLife, a_captured_request_has_ended_and_cannot_be_posted) {
  PostLife life;
  RequestState before{};
  ASSERT_TRUE(life.begin(before));
  ASSERT_TRUE(life.change(1, RequestState::posted, RequestState::captured));
  EXPECT_TRUE(life.ended());
  EXPECT_FALSE(life.begin(before));
}

TEST(PostLife, of_two_numbers_the_higher_stays) {
  std::atomic<std::uint64_t> highest{0};
  raise(highest, 5);
  raise(highest, 3);
  EXPECT_EQ(highest, 5U);
}

}  // namespace
}  // namespace headrace::engine
