// SPDX-License-Identifier: Apache-2.0
#include "cli/common/arguments.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <utility>

namespace headrace::cli {
namespace {

Check check_by(const CLI::Validator& validator) {
  return [validator](const std::string& value) { return validator(value); };
}

}  // namespace

Check one_of(std::vector<std::string> values) { return check_by(CLI::IsMember(std::move(values))); }
Check whole_numbers_within(int low, int high) { return check_by(CLI::Range(low, high)); }

const Argument& Argument::required() const { return option_->required(), *this; }
const Argument& Argument::type_name(const std::string& name) const { return option_->type_name(name), *this; }
const Argument& Argument::show_default() const { return option_->capture_default_str(), *this; }
const Argument& Argument::check(Check check, const std::string& description) const {
  option_->check(std::move(check), description);
  return *this;
}
const Argument& Argument::expected(int least, int most) const {
  return option_->expected(least, most), *this;
}
const Argument& Argument::delimiter(char delimiter) const { return option_->delimiter(delimiter), *this; }
const Argument& Argument::one_value_a_time() const { return option_->allow_extra_args(false), *this; }
const Argument& Argument::take_last() const { return option_->take_last(), *this; }
const Argument& Argument::hide() const { return option_->group(""), *this; }
const Argument& Argument::excludes(const Argument& other) const {
  return option_->excludes(other.option_), *this;
}
const Argument& Argument::needs(const Argument& other) const { return option_->needs(other.option_), *this; }

Command Command::add_subcommand(const std::string& name, const std::string& description) const {
  return Command(*app_->add_subcommand(name, description));
}

template <class Value>
Argument Command::add_option(const std::string& names, Value& value, const std::string& description) const {
  return Argument(app_->add_option(names, value, description));
}
// One line for each type that a subcommand uses.
template Argument Command::add_option(const std::string&, std::string&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::vector<std::string>&,
                                      const std::string&) const;
template Argument Command::add_option(const std::string&, int&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::vector<int>&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::int64_t&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::uint32_t&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::uint64_t&, const std::string&) const;
template Argument Command::add_option(const std::string&, double&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::optional<std::uint16_t>&,
                                      const std::string&) const;
template Argument Command::add_option(const std::string&, std::optional<std::uint32_t>&,
                                      const std::string&) const;
template Argument Command::add_option(const std::string&, std::optional<std::uint64_t>&,
                                      const std::string&) const;

Argument Command::add_flag(const std::string& names, bool& value, const std::string& description) const {
  return Argument(app_->add_flag(names, value, description));
}
void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::hide() const { app_->group(""); }
void Command::require_subcommand() const { app_->require_subcommand(1); }
void Command::callback(std::function<void()> chosen) const { app_->callback(std::move(chosen)); }

void refuse_without(const std::string& argument) { throw CLI::RequiredError(argument); }
void refuse_together(const std::string& argument, const std::string& other) {
  throw CLI::ExcludesError(argument, other);
}

}  // namespace headrace::cli
