// SPDX-License-Identifier: Apache-2.0
#include "agent/secret.hpp"

#include "agent/core_options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

namespace headrace {
namespace {

using ::testing::HasSubstr;

Result<Secret> read(std::map<std::string, std::string> given) {
  OptionSources sources;
  sources.given = std::move(given);
  sources.other_tables = {"*"};
  return Secret::read(Options::resolve(core_options, sources).value());
}

TEST(Secret, comes_from_the_option_or_the_first_line_of_a_file_and_not_from_both) {
  const std::string file = testing::TempDir() + "secret_test_file";
  std::FILE* const out = std::fopen(file.c_str(), "w");
  ASSERT_NE(out, nullptr);
  std::fputs("  open sesame \nsecond line\n", out);
  std::fclose(out);
  EXPECT_EQ(read({{"auth_token_file", file}})->token, "open sesame");
  EXPECT_EQ(read({{"auth_token", "abc"}})->token, "abc");
  EXPECT_EQ(read({{"auth_token", "abc"}, {"auth_token_file", file}}).code(), Code::invalid_argument);
  std::remove(file.c_str());
  EXPECT_EQ(read({{"auth_token_file", file}}).code(), Code::invalid_argument);
}

TEST(Secret, that_is_required_and_missing_opens_no_port_beyond_loopback) {
  const Secret missing = read({{"auth", "required"}}).value();
  EXPECT_TRUE(missing.check_port("a port", "127.0.0.1:0,[::1]:80,localhost:7", "x").ok());
  for (const char* const addresses : {"", "0.0.0.0:0", "127.0.0.1:0,10.0.0.1:0", ":0", "[::]:0", "host:1"}) {
    const auto refused = missing.check_port("a port", addresses, "tcp.listen=127.0.0.1:0");
    EXPECT_EQ(refused.code(), Code::invalid_argument) << addresses;
    EXPECT_THAT(refused.error().message, HasSubstr("set auth_token")) << addresses;
    EXPECT_THAT(refused.error().message, HasSubstr("HEADRACE_AUTH_TOKEN_FILE), or tcp.listen=127.0.0.1:0"));
  }
  EXPECT_TRUE(read({{"auth", "required"}, {"auth_token", "abc"}})->check_port("a port", "", "x").ok());
  EXPECT_TRUE(read({})->check_port("a port", "", "x").ok());
  EXPECT_EQ(read({{"auth", "maybe"}}).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace
