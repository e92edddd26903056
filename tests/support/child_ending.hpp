// SPDX-License-Identifier: Apache-2.0
// How a child of a test ended. WEXITSTATUS alone takes a child that a signal ended for one that ended well.
#pragma once

#include "cli/common/child_ending.hpp"

#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

namespace headrace::test {

using cli::ending_text;

/// Whether a status of waitpid is that of a child that ended with exit code 0; says how it ended if not.
inline ::testing::AssertionResult is_good_ending(int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "the child " << ending_text(status);
}

/// Waits for a child; whether it ended with exit code 0.
inline ::testing::AssertionResult ends_well(pid_t child) {
  int status = 0;
  pid_t waited = 0;
  do waited = ::waitpid(child, &status, 0);
  while (waited < 0 && errno == EINTR);
  if (waited != child) return ::testing::AssertionFailure() << "there is no child: " << std::strerror(errno);
  return is_good_ending(status);
}

}  // namespace headrace::test
