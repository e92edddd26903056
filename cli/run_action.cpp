// SPDX-License-Identifier: Apache-2.0
#include "cli/run_action.hpp"

#include "cli/common/errors.hpp"
#include "cli/common/text.hpp"

#include <cerrno>
#include <cstdio>
#include <new>
#include <system_error>

namespace headrace::cli {
namespace {

constexpr int exit_failed = 1;

/// A reader that closes the pipe early (`headrace plugins | head -1`) is not an error.
int written(int error_number) {
  if (error_number == EPIPE) return 0;
  complain(fmt::format("writing to the standard output: {}", system_text(error_number)));
  return exit_failed;
}

}  // namespace

int flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  return written(errno == 0 ? EIO : errno);
}

int run_action(const std::function<Result<void>()>& action) {
  try {
    if (auto done = action(); !done) {
      std::fflush(stdout);
      complain(done.error().message);
      return exit_failed;
    }
  } catch (const std::bad_alloc&) {
    complain("out of memory");
    return exit_failed;
  } catch (const std::system_error& error) {
    // A failed write to the standard output throws this; so do other calls of the system.
    if (std::ferror(stdout) != 0) return written(error.code().value());
    complain(fmt::format("a call of the system failed: {}", error.what()));
    return exit_failed;
  }
  return flush_output();
}

}  // namespace headrace::cli
