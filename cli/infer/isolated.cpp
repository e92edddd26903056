// SPDX-License-Identifier: Apache-2.0
#include "cli/infer/isolated.hpp"

#include "cli/common/child_ending.hpp"
#include "cli/common/errors.hpp"
#include "cli/run_action.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

namespace headrace::cli {
namespace {

[[noreturn]] void be_the_child(pid_t parent, const std::function<Result<void>()>& action) {
  // The run ends with its parent.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::_exit(run_action(action));
}

}  // namespace

Result<void> run_isolated(const std::string& what, const std::function<Result<void>()>& action) {
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) return fail(Code::exhausted, "no process could be made for {}: {}", what, system_text());
  if (child == 0) be_the_child(parent, action);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status))
    return fail(
        Code::backend_failed,
        "the process of {} {}. What it printed stands above. Compiled code ends its process if an index is "
        "out of range, for one: docs/model.md, \"Checking\"",
        what, ending_text(status));
  if (WEXITSTATUS(status) != 0) ::_exit(WEXITSTATUS(status));
  return {};
}

}  // namespace headrace::cli
