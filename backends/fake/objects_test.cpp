// SPDX-License-Identifier: Apache-2.0
// The option that lists objects. What a query answers is the contract suite's business.
#include "backends/fake/objects.hpp"

#include <gtest/gtest.h>

namespace headrace::fake {
namespace {

TEST(FakeObjects, an_option_that_is_no_list_of_keys_and_bytes_is_refused_with_the_part_that_is_wrong) {
  for (const char* wrong : {"weights", "weights=", "=4", "weights=many", "weights=-1", "weights=4k",
                            "weights=99999999999999999999", "a=1, weights"}) {
    const auto objects = Objects::parse(wrong);
    EXPECT_EQ(objects.code(), Code::invalid_argument) << wrong;
    EXPECT_NE(objects.error().message.find("write KEY=BYTES"), std::string::npos) << objects.error().message;
  }
  const auto twice = Objects::parse("a=1, b=2, a=3");
  EXPECT_EQ(twice.code(), Code::invalid_argument);
  EXPECT_NE(twice.error().message.find("\"a\" twice"), std::string::npos);
}

TEST(FakeObjects, a_list_may_be_empty_and_a_key_may_hold_an_equals_sign) {
  EXPECT_TRUE(Objects::parse("").ok());
  EXPECT_TRUE(Objects::parse(" a=b=3 , c=0,").ok());
}

}  // namespace
}  // namespace headrace::fake
