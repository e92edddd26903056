// SPDX-License-Identifier: Apache-2.0
// The command line of `headrace`. Each subcommand adds itself to the parser; the chosen one stores its
// action.
#pragma once

#include "cli/common/arguments.hpp"
#include "cli/common/errors.hpp"

#include <functional>
#include <map>
#include <string>

namespace headrace::cli {

/// The parsed command line.
struct Invocation {
  std::map<std::string, std::string> options;  ///< of the agent: --option name=value
  std::string command_line;                    ///< as typed, for the rows of benchmarks
  std::function<Result<void>()> action;        ///< set by the subcommand that was chosen
};

void add_serve(const Command& app, Invocation& invocation);
void add_pull(const Command& app, Invocation& invocation);
void add_doctor(const Command& app, Invocation& invocation);
void add_plugins(const Command& app, Invocation& invocation);
void add_bench(const Command& app, Invocation& invocation);
void add_tune(const Command& app, Invocation& invocation);
void add_demo(const Command& app, Invocation& invocation);
void add_infer(const Command& app, Invocation& invocation);
void add_inspect(const Command& app, Invocation& invocation);
void add_verify(const Command& app, Invocation& invocation);

/// Parses the command line and runs the command. Returns the exit code: 0 done; 1 failed, stderr says why;
/// 2 the command line is wrong.
int run(int argc, char** argv);

}  // namespace headrace::cli
