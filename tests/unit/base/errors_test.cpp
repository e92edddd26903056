// SPDX-License-Identifier: Apache-2.0
#include "base/errors.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace headrace {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return make_error(Code::invalid_argument, "{} is odd", number);
  return number / 2;
}

Result<int> quarter(int number) {
  HEADRACE_TRY(first, half(number));
  HEADRACE_TRY(second, half(first));
  return second;
}

Result<void> check_even(int number) {
  HEADRACE_TRY_VOID(half(number));
  return {};
}

TEST(Errors, ASystemErrorNamesTheActionThenTheSystemsTextThenTheErrno) {
  const Error error = os_error(EACCES, "bind {}:{}", "127.0.0.1", 80);
  EXPECT_EQ(error.message, "bind 127.0.0.1:80: permission denied (errno 13)");
}

TEST(Errors, a_lack_of_descriptors_comes_with_what_to_do) {
  EXPECT_EQ(os_error(EMFILE, "open x").message,
            "open x: too many open files (errno 24); close descriptors, or raise `ulimit -n`");
  EXPECT_NE(os_error_text(ENFILE).find("fs.file-max"), std::string::npos);
}

TEST(Errors, AnErrnoGetsTheCodeOfTheCallersNextStep) {
  EXPECT_EQ(os_error(EMFILE, "open").code, Code::exhausted);
  EXPECT_EQ(os_error(ECONNREFUSED, "connect").code, Code::peer_lost);
  EXPECT_EQ(os_error(EAGAIN, "read").code, Code::would_block);
  EXPECT_EQ(os_error(ENOENT, "open").code, Code::not_found);
  EXPECT_EQ(os_error(ENOSYS, "call").code, Code::not_supported);
  EXPECT_EQ(os_error(EIO, "read").code, Code::backend_failed);
  EXPECT_EQ(os_error(Code::corrupt, EIO, "read").code, Code::corrupt);
}

TEST(Errors, TryPassesOnTheValueOrTheFirstError) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(7).error().message, "7 is odd");
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_EQ(check_even(3).code(), Code::invalid_argument);
}

TEST(Errors, TheContextStandsInFrontOfTheMessage) {
  EXPECT_EQ(half(3).error().message, "3 is odd");
  EXPECT_EQ(std::move(half(3)).error().within("halve").message, "halve: 3 is odd");
}

TEST(Result, EveryCodeHasTheNameThatTheHeaderGivesIt) {
  const char* names[] = {
      "ok",       "would_block", "invalid_argument", "not_found", "not_supported",  "timed_out",
      "canceled", "peer_lost",   "exhausted",        "corrupt",   "backend_failed", "internal"};
  for (int code = 0; code < 12; ++code) EXPECT_EQ(code_name(static_cast<Code>(code)), names[code]);
  EXPECT_EQ(code_name(static_cast<Code>(99)), "unknown_code");
}

TEST(Result, EveryCodeHasASentenceOtherThanItsName) {
  for (int code = 0; code < 12; ++code) {
    const std::string_view sentence = code_sentence(static_cast<Code>(code));
    EXPECT_GT(sentence.size(), 10U) << code;
    EXPECT_NE(sentence, code_name(static_cast<Code>(code)));
  }
  EXPECT_NE(code_sentence(static_cast<Code>(99)), "");
}

TEST(ResultDeathTest, TakingTheValueOfAFailedResultPrintsTheErrorAndAborts) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(half(3).value(), "invalid_argument: 3 is odd");
}

}  // namespace
}  // namespace headrace
