// SPDX-License-Identifier: Apache-2.0
#include "cli/common/number_option.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace headrace::cli {
namespace {

TEST(NumberOption, AWholeNumberMustLieWithinItsBounds) {
  const Check check = whole_number(1, 64);
  for (const char* const text : {"1", "64", "007"}) EXPECT_EQ(check(std::string(text)), "") << text;
  for (const char* const text : {"", "0", "65", "-1", "+1", "1.5", "1e1", " 1", "1 ", "99999999999999999999"})
    EXPECT_THAT(check(std::string(text)), testing::HasSubstr("is not a whole number from 1 to 64")) << text;
  const Check any = whole_number(0, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(any(std::string("18446744073709551615")), "");
  EXPECT_NE(any(std::string("18446744073709551616")), "");
}

TEST(NumberOption, ARealNumberMustBeANumberWithinItsBounds) {
  const Check check = real_number(0, 100);
  for (const char* const text : {"0", "-0", "0.5", "1e-3", "100"})
    EXPECT_EQ(check(std::string(text)), "") << text;
  for (const char* const text : {"", "nan", "-nan", "NaN", "inf", "-1", "100.1", "1e999", "0.5x"})
    EXPECT_THAT(check(std::string(text)), testing::HasSubstr("is not a number from 0 to 100")) << text;
}

}  // namespace
}  // namespace headrace::cli
