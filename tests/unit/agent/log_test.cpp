// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

TEST(PublicLog, SetsTheLoggerOfTheProcess) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view, std::string_view text) { lines.emplace_back(text); });
  ASSERT_TRUE(set_log_level("info").ok());
  Log(Logger::process_default(), "agent").info("started");
  EXPECT_EQ(lines, std::vector<std::string>{"started"});
  set_log_sink({});
  ASSERT_TRUE(set_log_level("warn").ok());
}

}  // namespace
}  // namespace headrace
