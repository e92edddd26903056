// SPDX-License-Identifier: Apache-2.0
// What a subcommand is: it adds itself to the parser, and when it was chosen leaves an action behind.
#pragma once

#include "cli/arguments.hpp"
#include "cli/errors.hpp"

#include <functional>
#include <map>
#include <string>

namespace headrace::cli {

/// What was asked for on the command line.
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
void add_demo(const Command& app, Invocation& invocation);
void add_infer(const Command& app, Invocation& invocation);
void add_inspect(const Command& app, Invocation& invocation);
void add_verify(const Command& app, Invocation& invocation);

/// To stderr, after the command's name. A terminal gets short lines; in a log a sentence stays on one line,
/// where it can be searched for.
void complain(const std::string& message);

/// Parses and runs. 0: done; 1: it failed, and stderr says why; 2: the command line is wrong.
int run(int argc, char** argv);

}  // namespace headrace::cli
