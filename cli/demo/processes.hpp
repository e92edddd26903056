// SPDX-License-Identifier: Apache-2.0
// Runs this command again as child processes, which end with this process.
#pragma once

#include "cli/common/file_descriptor.hpp"

#include <headrace/result.hpp>

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace headrace::cli::demo {

/// A running `headrace ARGUMENTS...`. The destructor ends it. It has a process group of its own, so that
/// Ctrl-C of the terminal reaches this process only, which then decides when the child ends.
class Child {
 public:
  enum class Output { ours, piped };
  static Result<Child> start(std::string name, std::vector<std::string> arguments,
                             Output output = Output::ours);
  Child() = default;
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child() { stop(); }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// How it ended ("ended with exit code 1", "ended by signal 9 (SIGKILL)"); empty while it runs.
  [[nodiscard]] std::string ended();
  /// The signal that has stopped it (SIGSTOP); 0 while it is not stopped.
  [[nodiscard]] int stopped_by();
  /// The next line of its piped output; empty at the end, after `patience`, or if `stop` is readable.
  [[nodiscard]] std::string read_line(std::chrono::milliseconds patience, int stop);
  /// Sends SIGTERM, and SIGKILL if it has not ended after 2 s.
  void stop();
  /// Sends SIGKILL.
  void kill() const;

 private:
  std::string name_;
  std::vector<std::string> arguments_;
  pid_t pid_ = -1;
  std::string ending_;
  int stopped_by_ = 0;
  FileDescriptor output_;
};

/// Runs `headrace ARGUMENTS...` to its end. Its stdout is dropped; its stderr is ours.
///   errors  backend_failed (the text says how it ended)
Result<void> run_command(const std::vector<std::string>& arguments);

/// Runs another program to its end. Returns the first line of its stdout; its stderr is ours.
///   errors  backend_failed (the text says how it ended)
Result<std::string> run_program(const std::vector<std::string>& command);

}  // namespace headrace::cli::demo
