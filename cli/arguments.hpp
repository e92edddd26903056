// SPDX-License-Identifier: Apache-2.0
// What a subcommand takes on the command line. Stands between the subcommands and CLI11, whose header costs
// more to compile than any of them: arguments.cpp and command.cpp alone include it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 calls it so
class App;
class Option;
}  // namespace CLI

namespace headrace::cli {

/// What is wrong with a value; empty: nothing.
using Check = std::function<std::string(const std::string& value)>;

[[nodiscard]] Check one_of(std::vector<std::string> values);
[[nodiscard]] Check whole_numbers_within(int low, int high);

/// One argument, which the parser owns; as cheap to copy as a pointer.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  const Argument& required() const;
  /// What stands for the value in the help.
  const Argument& type_name(const std::string& name) const;
  /// Shows the present value of its variable in the help, as the default.
  const Argument& show_default() const;
  /// Each value has to pass. description: of the values, for the help.
  const Argument& check(Check check, const std::string& description = "") const;
  /// How many values one use takes.
  const Argument& expected(int least, int most) const;
  /// Values of one use are parted by it.
  const Argument& delimiter(char delimiter) const;
  /// Used several times: one value each time.
  const Argument& one_value_a_time() const;
  /// Used several times: the last one holds.
  const Argument& take_last() const;
  /// Not for people: left out of the help.
  const Argument& hide() const;
  const Argument& excludes(const Argument& other) const;

 private:
  CLI::Option* option_;
};

/// One subcommand, which the parser owns; as cheap to copy as a pointer. Variables live until the line was
/// parsed.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  [[nodiscard]] Command add_subcommand(const std::string& name, const std::string& description) const;
  /// names: "-o,--output", or "FILE" for one by its place. Value: std::string, a number, std::optional of
  /// one, or a vector.
  template <class Value>
  Argument add_option(const std::string& names, Value& value, const std::string& description = "") const;
  Argument add_flag(const std::string& names, bool& value, const std::string& description = "") const;
  /// Below the help.
  void footer(const std::string& text) const;
  /// Not for people: left out of the help.
  void hide() const;
  void require_subcommand() const;
  /// Called when this command was chosen and the line is right; may call the two below.
  void callback(std::function<void()> chosen) const;

 private:
  CLI::App* app_;
};

/// Out of a callback: the command line is wrong.
[[noreturn]] void refuse_without(const std::string& argument);
[[noreturn]] void refuse_together(const std::string& argument, const std::string& other);

}  // namespace headrace::cli
