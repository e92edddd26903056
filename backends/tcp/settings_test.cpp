// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/settings.hpp"

#include "backends/tcp/faults.hpp"
#include "backends/tcp/scripted_calls.hpp"

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

TEST(Settings, the_secret_comes_from_the_option_or_the_first_line_of_a_file_and_not_from_both) {
  const std::string file = testing::TempDir() + "tcp_settings_test_secret";
  std::FILE* const out = std::fopen(file.c_str(), "w");
  ASSERT_NE(out, nullptr);
  std::fputs("  open sesame \nsecond line\n", out);
  std::fclose(out);
  EXPECT_EQ(read({{"auth_token_file", file}})->token, "open sesame");
  EXPECT_EQ(read({{"auth_token", "abc"}})->token, "abc");
  EXPECT_EQ(read({{"auth_token", "abc"}, {"auth_token_file", file}}).code(), Code::invalid_argument);
  std::remove(file.c_str());
  EXPECT_EQ(read({{"auth_token_file", file}}).code(), Code::invalid_argument)
      << "a mistake in the settings, which nobody may overlook";
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

TEST(Faults, a_plan_is_read_from_text) {
  const auto plan = FaultPlan::parse("short_reads=7, short_writes,reset_after=2MiB,seed=9");
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->short_reads, 7U);
  EXPECT_GT(plan->short_writes, 0U);
  EXPECT_EQ(plan->reset_after, 2U << 20);
  EXPECT_EQ(plan->eagain, 0U);
  EXPECT_EQ(FaultPlan::parse("shorts").code(), Code::invalid_argument);
  EXPECT_EQ(FaultPlan::parse("eagain=100").code(), Code::invalid_argument);
}

ssize_t send_text(SocketCalls& calls, const std::string& text) {
  iovec piece{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  return calls.sendmsg(3, &message, false);
}

TEST(Faults, calls_are_short_interrupted_and_refused_as_the_plan_says_and_nothing_is_lost) {
  auto script = std::make_unique<ScriptedCalls>();
  ScriptedCalls& real = *script;
  FaultyCalls faulty(FaultPlan::parse("short_writes=3,eagain=30,eintr=20").value(), std::move(script));
  std::string text, left;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 26);
  left = text;
  int again = 0, interrupted = 0;
  while (!left.empty()) {
    const ssize_t n = send_text(faulty, left);
    if (n < 0) {
      (errno == EAGAIN ? again : interrupted)++;
      continue;
    }
    ASSERT_GE(n, 1);
    ASSERT_LE(n, 3);
    left.erase(0, static_cast<std::size_t>(n));
  }
  EXPECT_EQ(real.sent, text);
  EXPECT_GT(again, 50);
  EXPECT_GT(interrupted, 30);
}

TEST(Faults, a_reset_strikes_at_its_byte_and_again_on_a_new_socket) {
  auto script = std::make_unique<ScriptedCalls>();
  ScriptedCalls& real = *script;
  FaultyCalls faulty(FaultPlan::parse("reset_after=10").value(), std::move(script));
  EXPECT_EQ(send_text(faulty, "0123456"), 7);
  EXPECT_EQ(send_text(faulty, "789abc"), 3);
  EXPECT_EQ(send_text(faulty, "abc"), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(real.sent, "0123456789");
  faulty.forget(3);
  EXPECT_EQ(send_text(faulty, "xyz"), 3);
}

}  // namespace
}  // namespace headrace::tcp
