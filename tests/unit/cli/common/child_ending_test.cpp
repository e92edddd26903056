// SPDX-License-Identifier: Apache-2.0
#include "cli/common/child_ending.hpp"

#include "cli/demo/processes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <csignal>

namespace headrace::cli {
namespace {

using testing::EndsWith;

template <class Body>
std::string ending_of_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(99);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return ending_text(status);
}
std::string ended_by(int signal) {
  return ending_of_child([signal] {
    ::signal(signal, SIG_DFL);  // not the sanitizers'
    ::kill(::getpid(), signal);
  });
}

TEST(child_ending, tells_a_signal_from_an_exit_code) {
  EXPECT_EQ(ending_of_child([] { ::_exit(0); }), "ended with exit code 0");
  EXPECT_EQ(ending_of_child([] { ::_exit(11); }), "ended with exit code 11");
  EXPECT_EQ(ended_by(SIGSEGV), "ended by signal 11 (SIGSEGV)");
  EXPECT_EQ(ended_by(SIGKILL), "ended by signal 9 (SIGKILL)");
  EXPECT_EQ(ended_by(SIGRTMIN + 1), "ended by signal " + std::to_string(SIGRTMIN + 1));
}

TEST(child_ending, of_a_program_that_the_demo_runs_is_told_with_the_program) {
  const auto told = [](const std::string& script) {
    return demo::run_program({"/bin/sh", "-c", script}).error().message;
  };
  EXPECT_EQ(demo::run_program({"/bin/sh", "-c", "echo a line"}).value(), "a line");
  EXPECT_EQ(told("exit 3"), "`/bin/sh -c exit 3` ended with exit code 3");
  EXPECT_THAT(told("kill -SEGV $$"), EndsWith("` ended by signal 11 (SIGSEGV)"));
}

}  // namespace
}  // namespace headrace::cli
