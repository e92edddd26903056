// SPDX-License-Identifier: Apache-2.0
#include "rail/nic_pairs.hpp"

#include "rail/link_message.hpp"

#include <gtest/gtest.h>

namespace headrace::rail {
namespace {

using Addresses = std::vector<std::string>;
using Pairs = std::vector<NicPair>;

TEST(NicPairs, are_of_one_kind_and_in_order) {
  EXPECT_EQ(pair_nics(Addresses{"tcp:a", "tcp:b"}, Addresses{"tcp:c", "tcp:d"}), (Pairs{{0, 0}, {1, 1}}));
  EXPECT_EQ(pair_nics(Addresses{"shm:a", "tcp:b"}, Addresses{"tcp:c", "shm:d"}), (Pairs{{0, 1}, {1, 0}}));
}

TEST(NicPairs, where_one_side_has_more_of_a_kind_the_other_has_several_rails) {
  EXPECT_EQ(pair_nics(Addresses{"tcp:a"}, Addresses{"tcp:b", "tcp:c", "tcp:d"}),
            (Pairs{{0, 0}, {0, 1}, {0, 2}}));
  EXPECT_EQ(pair_nics(Addresses{"shm:a", "tcp:b", "tcp:c"}, Addresses{"shm:d", "tcp:e"}),
            (Pairs{{0, 0}, {1, 1}, {2, 1}}));
}

TEST(NicPairs, a_kind_that_one_side_lacks_is_left_out) {
  EXPECT_EQ(pair_nics(Addresses{"shm:a", "tcp:b"}, Addresses{"tcp:c"}), (Pairs{{1, 0}}));
  EXPECT_EQ(pair_nics(Addresses{"tcp:b"}, Addresses{"shm:c", "tcp:d", "efa:e"}), (Pairs{{0, 1}}));
}

TEST(NicPairs, without_a_kind_in_common_there_is_one_that_fails_with_a_reason) {
  EXPECT_EQ(pair_nics(Addresses{"tcp:a", "tcp:b"}, Addresses{"shm:c"}), (Pairs{{0, 0}}));
}

TEST(NicPairs, are_no_more_than_a_hello_can_name) {
  Addresses here(max_rails, "tcp:a"), there(max_rails, "tcp:b");
  here.front() = "shm:a";
  there.assign(max_rails, "shm:b");
  there.back() = "tcp:b";
  EXPECT_EQ(pair_nics(here, there).size(), max_rails);
}

}  // namespace
}  // namespace headrace::rail
