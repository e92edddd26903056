// SPDX-License-Identifier: Apache-2.0
// The arguments of a subcommand. This header hides CLI11 from the subcommands, because CLI11's header takes
// longer to compile than any of them. Only arguments.cpp and command.cpp include it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 calls it so
class App;
class Option;
}  // namespace CLI

namespace headrace::cli {

/// Returns what is wrong with a value, or an empty text if the value is good.
using Check = std::function<std::string(const std::string& value)>;

[[nodiscard]] Check one_of(std::vector<std::string> values);
[[nodiscard]] Check whole_numbers_within(int low, int high);

/// One argument. The parser owns it; a copy costs as much as a pointer's.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  const Argument& required() const;
  /// Sets the word that stands for the value in the help.
  const Argument& type_name(const std::string& name) const;
  /// Shows the present value of the variable as the default in the help.
  const Argument& show_default() const;
  /// Checks each value. `description` describes the values in the help.
  const Argument& check(Check check, const std::string& description = "") const;
  /// Sets how many values one use of the option takes.
  const Argument& expected(int least, int most) const;
  /// Separates the values of one use.
  const Argument& delimiter(char delimiter) const;
  /// The option can be used several times, with one value each time.
  const Argument& one_value_a_time() const;
  /// The option can be used several times; the last value counts.
  const Argument& take_last() const;
  /// Leaves it out of the help.
  const Argument& hide() const;
  const Argument& excludes(const Argument& other) const;
  const Argument& needs(const Argument& other) const;

 private:
  CLI::Option* option_;
};

/// One subcommand. The parser owns it; a copy costs as much as a pointer's. The variables of its options must
/// live until the command line has been parsed.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  [[nodiscard]] Command add_subcommand(const std::string& name, const std::string& description) const;
  /// names: "-o,--output", or "FILE" for a positional argument. Value: std::string, a number, std::optional
  /// of a number, or a vector.
  template <class Value>
  Argument add_option(const std::string& names, Value& value, const std::string& description = "") const;
  Argument add_flag(const std::string& names, bool& value, const std::string& description = "") const;
  /// Sets the text below the help.
  void footer(const std::string& text) const;
  /// Leaves it out of the help.
  void hide() const;
  void require_subcommand() const;
  /// Called when this command was chosen and the line parsed. It may call refuse_without and refuse_together.
  void callback(std::function<void()> chosen) const;

 private:
  CLI::App* app_;
};

/// Called from a callback: report that the command line lacks an argument, or has two that exclude each
/// other.
[[noreturn]] void refuse_without(const std::string& argument);
[[noreturn]] void refuse_together(const std::string& argument, const std::string& other);

}  // namespace headrace::cli
