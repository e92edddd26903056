// SPDX-License-Identifier: Apache-2.0
#include "cli/command.hpp"

#include <headrace/log.hpp>
#include <headrace/version.hpp>

#include "cli/common/text.hpp"
#include "cli/run_action.hpp"

#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace headrace::cli {
namespace {

constexpr int exit_usage = 2;

std::string join(int argc, char** argv) {
  std::string line = "headrace";
  for (int i = 1; i < argc; ++i) line.append(" ").append(argv[i]);
  return line;
}

std::string hint(std::string_view wrong, const std::vector<std::string>& names) {
  const std::vector<std::string> similar = nearest(wrong, names, 1);
  return similar.empty() ? "" : ": did you mean " + similar.front() + "?";
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent())
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// Says which word of the command line is wrong, and the nearest right one. CLI11 names no wrong command, and
/// lists what it did not expect backwards.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string path = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += " " + command->get_name();
  }
  std::vector<std::string> commands;
  for (const CLI::App* sub :
       command->get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); }))
    commands.push_back(sub->get_name());
  for (const std::string& word : app.remaining(true)) {
    const std::string name = word.substr(0, word.find('='));
    if (name.starts_with("--") && name.size() > 2)
      return fmt::format("`{}` has no option {}{}", path, name, hint(name, option_names(*command)));
    if (name == "export" && command == &app)
      return "there is no command `headrace export`: `python -m headrace.export` makes packages of models";
    if (!name.starts_with("-") && !commands.empty())
      return fmt::format("there is no command `{} {}`{}", path, name, hint(name, commands));
  }
  if (!commands.empty() && error.get_name() == "RequiredError")
    return fmt::format("name a command: {}", fmt::join(commands, ", "));
  return error.what();
}

}  // namespace

int run(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a write to a closed pipe then fails with EPIPE

  Invocation invocation;
  invocation.command_line = join(argc, argv);
  std::string log;
  std::vector<std::string> settings;

  CLI::App app("Moves tensors between processes and machines.", "headrace");
  app.set_version_flag("--version", "headrace " HEADRACE_VERSION, "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.add_option("--log", log,
                 "Log level of stderr: off, error, warn, info, debug or trace;\n"
                 "for one room (a part of the library): warn,tcp=debug")
      ->type_name("LEVEL");
  app.add_option("--option", settings, "Set an option of the agent; `headrace doctor` lists them; repeatable")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  bool require_auth = false;
  app.add_flag("--require-auth", require_auth,
               "Open no port beyond loopback without a secret (auth_token, auth_token_file)");
  app.require_subcommand(1);
  app.fallthrough();
  app.get_formatter()->column_width(34);
  app.footer(
      "Examples:\n"
      "  headrace demo                                generate a text with two workers, print what moved\n"
      "  headrace serve model.safetensors             offer a file's tensors to other processes\n"
      "  headrace pull 10.0.0.7:40213 -o copy.npz     copy them into a file\n"
      "  headrace doctor                              show what works on this machine\n"
      "  headrace bench pages --page 4K,1M            measure how fast pages move\n"
      "  headrace infer model.pt2 --input x.npy       run a compiled model\n"
      "`headrace COMMAND --help` explains a command.");
  const Command commands(app);
  add_demo(commands, invocation);
  add_serve(commands, invocation);
  add_pull(commands, invocation);
  add_doctor(commands, invocation);
  add_plugins(commands, invocation);
  add_bench(commands, invocation);
  add_tune(commands, invocation);
  add_infer(commands, invocation);
  add_inspect(commands, invocation);
  add_verify(commands, invocation);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
      return app.exit(error), flush_output();
    complain(usage_error(app, error));
    std::fputs("  Run with --help for the commands and options.\n", stderr);
    return exit_usage;
  }
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == 0 || equals == std::string::npos) {
      complain(
          fmt::format("--option {}: write it as name=value, for example --option tcp.sockets=4", setting));
      return exit_usage;
    }
    invocation.options[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  if (require_auth) invocation.options["auth"] = "required";
  if (!log.empty()) {
    if (auto set = set_log_level(log); !set) {
      complain(fmt::format("--log: {}", set.error().message));
      return exit_usage;
    }
    // For agents, which set the level of HEADRACE_LOG when they open, and for the processes of `demo`.
    ::setenv("HEADRACE_LOG", log.c_str(), 1);
  }

  return run_action(invocation.action);
}

}  // namespace headrace::cli
