// SPDX-License-Identifier: Apache-2.0
// The exit code of a command and its text on stderr.
#include "cli/run_action.hpp"

#include "cli/common/errors.hpp"
#include "cli/common/file_descriptor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <system_error>

namespace headrace::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Ending {
  int code = 0;
  std::string said;
};

Ending ending_of(const std::function<Result<void>()>& action) {
  testing::internal::CaptureStderr();
  const int code = run_action(action);
  return {code, testing::internal::GetCapturedStderr()};
}

/// While an object of this class lives, the standard output is a device that refuses every write.
class FullOutput {
 public:
  FullOutput() {
    std::fflush(stdout);
    kept_ = FileDescriptor(::dup(STDOUT_FILENO));
    const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
    ::dup2(full.get(), STDOUT_FILENO);
  }
  ~FullOutput() {
    ::dup2(kept_.get(), STDOUT_FILENO);
    std::clearerr(stdout);
  }

 private:
  FileDescriptor kept_;
};

TEST(RunAction, AnErrorIsPrintedAndTheExitCodeIs1) {
  EXPECT_EQ(ending_of([]() -> Result<void> { return {}; }).code, 0);
  const Ending failed = ending_of([]() -> Result<void> { return fail(Code::not_found, "no such thing"); });
  EXPECT_EQ(failed.code, 1);
  EXPECT_EQ(failed.said, "headrace: no such thing\n");
  const Ending memory = ending_of([]() -> Result<void> { throw std::bad_alloc(); });
  EXPECT_EQ(memory.code, 1);
  EXPECT_THAT(memory.said, HasSubstr("out of memory"));
}

TEST(RunAction, ASystemErrorIsPrintedWithItsOwnText) {
  const Ending ending = ending_of(
      []() -> Result<void> { throw std::system_error(EAGAIN, std::generic_category(), "make a thread"); });
  EXPECT_EQ(ending.code, 1);
  EXPECT_THAT(ending.said, AllOf(HasSubstr("make a thread: Resource temporarily unavailable"),
                                 Not(HasSubstr("standard output"))));
}

TEST(RunAction, AStandardOutputThatRefusesWritesIsNamed) {
  Ending ending;
  {
    const FullOutput full;
    ending = ending_of([]() -> Result<void> {
      std::fputs("text", stdout);
      if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category());
      return {};
    });
  }
  EXPECT_EQ(ending.code, 1);
  EXPECT_THAT(ending.said, HasSubstr("writing to the standard output: No space left on device"));
}

}  // namespace
}  // namespace headrace::cli
