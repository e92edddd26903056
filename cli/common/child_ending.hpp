// SPDX-License-Identifier: Apache-2.0
// How a child process ended, in words.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstring>
#include <string>

namespace headrace::cli {

/// Of a status of waitpid: "ended with exit code 1", "ended by signal 11 (SIGSEGV)".
inline std::string ending_text(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  const char* const name = ::sigabbrev_np(WTERMSIG(status));  // none for real-time signals
  if (name == nullptr) return fmt::format("ended by signal {}", WTERMSIG(status));
  return fmt::format("ended by signal {} (SIG{})", WTERMSIG(status), name);
}

}  // namespace headrace::cli
