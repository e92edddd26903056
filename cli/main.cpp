// SPDX-License-Identifier: Apache-2.0
#include "cli/command.hpp"

#include <csignal>

int main(int argc, char** argv) {
  // A parent that ignores SIGCHLD passes that on: then nobody could tell how our own children end.
  std::signal(SIGCHLD, SIG_DFL);
  return headrace::cli::run(argc, argv);
}
