// SPDX-License-Identifier: Apache-2.0
#include "base/fork_guard.hpp"

#include <gtest/gtest.h>

#include <sys/wait.h>

namespace headrace {
namespace {

TEST(ForkGuard, TheGuardReportsAForkInTheChildAndNotInTheParent) {
  const ForkGuard guard;
  EXPECT_FALSE(guard.forked());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(guard.forked() && !ForkGuard().forked() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(guard.forked());
}

}  // namespace
}  // namespace headrace
