// SPDX-License-Identifier: Apache-2.0
#include "base/fork_guard.hpp"

#include "support/child_ending.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

namespace headrace {
namespace {

TEST(ForkGuard, TheGuardReportsAForkInTheChildAndNotInTheParent) {
  const ForkGuard guard;
  EXPECT_FALSE(guard.forked());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(guard.forked() && !ForkGuard().forked() ? 0 : 1);
  EXPECT_TRUE(test::ends_well(child));
  EXPECT_FALSE(guard.forked());
}

}  // namespace
}  // namespace headrace
