// SPDX-License-Identifier: Apache-2.0
#include "collectives/left_out.hpp"

#include <headrace/comm.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace::collectives {
namespace {

TEST(LeftOut, a_name_is_left_out_if_the_list_has_it) {
  EXPECT_TRUE(is_left_out("nccl", "lazy,nccl"));
  EXPECT_TRUE(is_left_out("lazy", "lazy,nccl"));
  EXPECT_FALSE(is_left_out("nccl", "ncclx"));
  EXPECT_FALSE(is_left_out("ncclx", "lazy,nccl"));
  EXPECT_FALSE(is_left_out("nccl", ""));
}

// The backends that this build has left out; an ordinary build leaves out none.
TEST(LeftOut, a_backend_that_is_left_out_is_not_listed_and_says_how_to_build_it) {
  for (const char* name : {"fake", "lazy", "nccl", "ncclx", "rccl"}) {
    const auto listed = testing::Contains(std::string(name));
    if (!is_left_out(name)) {
      EXPECT_THAT(list_comm_backends(), listed);
      continue;
    }
    EXPECT_THAT(list_comm_backends(), testing::Not(listed));
    CommOptions options;
    options.backend = name;
    const auto opened = Comm::open(options);
    EXPECT_EQ(opened.code(), Code::not_found);
    EXPECT_THAT(opened.error().message, testing::HasSubstr("left out of this build"));
  }
}

}  // namespace
}  // namespace headrace::collectives
