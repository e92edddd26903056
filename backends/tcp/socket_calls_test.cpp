// SPDX-License-Identifier: Apache-2.0
// What stands in for the system's calls in tests: a plan of faults over a script.
#include "backends/tcp/socket_calls.hpp"

#include "support/faulty_sockets.hpp"
#include "support/scripted_sockets.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace headrace::test {
namespace {

TEST(FaultySockets, a_plan_is_read_from_text) {
  const auto plan = FaultPlan::parse("short_reads=7, short_writes,reset_after=2MiB,seed=9");
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->short_reads, 7U);
  EXPECT_GT(plan->short_writes, 0U);
  EXPECT_EQ(plan->reset_after, 2U << 20);
  EXPECT_EQ(plan->eagain, 0U);
  EXPECT_EQ(FaultPlan::parse("shorts").code(), Code::invalid_argument);
  EXPECT_EQ(FaultPlan::parse("eagain=100").code(), Code::invalid_argument);
}

ssize_t send_text(tcp::SocketCalls& calls, const std::string& text) {
  iovec piece{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  return calls.sendmsg(3, &message, false);
}

TEST(FaultySockets, calls_are_short_interrupted_and_refused_as_the_plan_says_and_nothing_is_lost) {
  auto script = std::make_unique<ScriptedSockets>();
  ScriptedSockets& real = *script;
  FaultySockets faulty(FaultPlan::parse("short_writes=3,eagain=30,eintr=20").value(), std::move(script));
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

TEST(FaultySockets, a_reset_strikes_at_its_byte_and_again_on_a_new_socket) {
  auto script = std::make_unique<ScriptedSockets>();
  ScriptedSockets& real = *script;
  FaultySockets faulty(FaultPlan::parse("reset_after=10").value(), std::move(script));
  EXPECT_EQ(send_text(faulty, "0123456"), 7);
  EXPECT_EQ(send_text(faulty, "789abc"), 3);
  EXPECT_EQ(send_text(faulty, "abc"), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(real.sent, "0123456789");
  faulty.forget(3);
  EXPECT_EQ(send_text(faulty, "xyz"), 3);
}

}  // namespace
}  // namespace headrace::test
