// SPDX-License-Identifier: Apache-2.0
// This command again, as child processes that end with us.
#pragma once

#include "cli/file_descriptor.hpp"

#include <headrace/result.hpp>

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace headrace::cli::demo {

/// A running `headrace ARGUMENTS...`; ended when this object goes. In a process group of its own: what a
/// terminal's Ctrl-C is to do to it is ours to say.
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
  /// How it ended ("ended with exit code 1", "ended by signal 9 (SIGKILL)"), or nothing while it runs.
  [[nodiscard]] std::string ended();
  /// By which signal it was stopped, while it is; 0 otherwise.
  [[nodiscard]] int stopped_by();
  /// Its next line, of a piped output; empty at the end, when it is late, or when `stop` is readable.
  [[nodiscard]] std::string read_line(std::chrono::milliseconds patience, int stop);
  /// SIGTERM, and SIGKILL if that does not do.
  void stop();
  /// SIGKILL, for one that does nothing any more.
  void kill() const;

 private:
  std::string name_;
  std::vector<std::string> arguments_;
  pid_t pid_ = -1;
  std::string ending_;
  int stopped_by_ = 0;
  FileDescriptor output_;
};

/// Runs `headrace ARGUMENTS...` to its end; what it prints is thrown away, its errors go where ours go.
///   errors  backend_failed (how it ended)
Result<void> run_command(const std::vector<std::string>& arguments);

/// Runs another program to its end; gives the first line that it prints.
///   errors  backend_failed (how it ended; its own words have gone to stderr)
Result<std::string> run_program(const std::vector<std::string>& command);

}  // namespace headrace::cli::demo
