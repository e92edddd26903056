// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/settings.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace headrace::tcp {
namespace {

Result<Settings> read(const std::map<std::string, std::string>& given) {
  std::vector<headrace_setting_v1> settings;
  for (const headrace_option_v1& row : Settings::rows()) {
    const auto at = given.find(row.name);
    settings.push_back({row.name, at == given.end() ? row.default_value : at->second.c_str()});
  }
  return Settings::read({settings, "/tmp"});
}

TEST(Settings, the_defaults_of_the_table_are_valid) {
  const auto settings = read({});
  ASSERT_TRUE(settings.ok()) << settings.error().message;
  EXPECT_GE(settings->sockets, 1U);
  EXPECT_GE(settings->threads, 1U);
  EXPECT_LE(settings->threads, settings->sockets);
  EXPECT_EQ(settings->congestion, "cubic");
  EXPECT_EQ(settings->heartbeat_timeout, std::chrono::seconds(5));
}

TEST(Settings, a_wrong_value_is_refused_with_name_and_value) {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"sockets", "0"},         {"sockets", "65"},          {"sockets", "two"},
      {"threads", "-1"},        {"chunk_bytes", "1"},       {"window", "lots"},
      {"direct_bytes", "2MiB"}, {"spin", "soon"},           {"heartbeat_interval", "0"},
      {"max_pending", "none"},  {"heartbeat_timeout", "1s"}};
  for (const auto& [name, value] : wrong) {
    const auto settings = read({{name, value}});
    ASSERT_FALSE(settings.ok()) << name << "=" << value;
    EXPECT_EQ(settings.code(), Code::invalid_argument);
    EXPECT_NE(settings.error().message.find(name), std::string::npos) << settings.error().message;
    EXPECT_NE(settings.error().message.find(value), std::string::npos) << settings.error().message;
  }
}

TEST(Settings, the_ring_for_gpus_holds_two_of_its_pieces) {
  EXPECT_EQ(read({}).value().gpu_ring_bytes, 4U << 20);
  EXPECT_EQ(read({}).value().gpu_chunk_bytes, 1U << 20);
  EXPECT_TRUE(read({{"gpu_ring_bytes", "128KiB"}, {"gpu_chunk_bytes", "64KiB"}}).ok());
  const auto small = read({{"gpu_ring_bytes", "1MiB"}});
  ASSERT_FALSE(small);
  EXPECT_NE(small.error().message.find("gpu_ring_bytes"), std::string::npos) << small.error().message;
}

TEST(Settings, the_secret_is_marked_as_one) {
  for (const headrace_option_v1& row : Settings::rows())
    EXPECT_EQ((row.flags & HEADRACE_OPTION_SECRET) != 0, std::string_view(row.name) == "auth_token")
        << row.name;
}

}  // namespace
}  // namespace headrace::tcp
