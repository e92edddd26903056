// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace headrace::posix {
namespace {

TEST(PosixSettings, the_defaults_of_the_table_are_valid) {
  const auto settings = read_settings({});
  ASSERT_TRUE(settings.ok()) << settings.error().message;
  EXPECT_EQ(settings->threads, 8U);
  EXPECT_EQ(settings->piece_bytes, 1U << 20);
  EXPECT_EQ(settings->queue_depth, 65536U);
}

TEST(PosixSettings, a_wrong_value_is_refused_with_name_and_value) {
  const std::vector<std::pair<const char*, const char*>> wrong{
      {"threads", "0"},         {"threads", "1025"},  {"piece_bytes", "4096"},
      {"piece_bytes", "65537"}, {"queue_depth", "0"}, {"queue_depth", "many"}};
  for (const auto& [name, value] : wrong) {
    const headrace_setting_v1 setting{name, value};
    const auto refused = read_settings({{&setting, 1}, ""});
    ASSERT_EQ(refused.code(), Code::invalid_argument) << name << " = " << value;
    EXPECT_THAT(refused.error().message, testing::AllOf(testing::HasSubstr(name), testing::HasSubstr(value)));
  }
}

}  // namespace
}  // namespace headrace::posix
