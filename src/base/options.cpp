// SPDX-License-Identifier: Apache-2.0
#include "base/options.hpp"

#include "base/text.hpp"
#include "base/toml_file.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace headrace {
namespace {

std::vector<std::string_view> row_names(std::span<const OptionRow> rows) {
  std::vector<std::string_view> names;
  for (const OptionRow& row : rows) names.emplace_back(row.name);
  return names;
}

bool has_row(std::span<const OptionRow> rows, std::string_view name) {
  return std::ranges::any_of(rows, [&](const OptionRow& row) { return name == row.name; });
}

Error unknown_option(std::span<const OptionRow> rows, std::string_view name, std::string_view where) {
  const std::string_view nearest = nearest_name(name, row_names(rows));
  if (nearest.empty())
    return make_error(Code::invalid_argument, "no option \"{}\" ({}): there are none", name, where);
  return make_error(Code::invalid_argument, "no option \"{}\" ({}): did you mean \"{}\"?", name, where,
                    nearest);
}

struct ConfigFile {
  std::string path;
  std::map<std::string, TomlEntry> entries;  // by row name
};

bool lies_in(std::string_view name, std::string_view table) {
  return name.size() > table.size() && name.starts_with(table) && name[table.size()] == '.';
}

/// The entries of the file that belong to this table, under the names of the rows.
Result<ConfigFile> read_config(std::span<const OptionRow> rows, const OptionSources& sources) {
  ConfigFile config;
  config.path =
      sources.config_file ? *sources.config_file : sources.environment("HEADRACE_CONFIG").value_or("");
  if (config.path.empty()) return config;
  HEADRACE_TRY(all, read_toml(config.path));
  for (auto& [full_name, entry] : all) {
    std::string name = full_name;
    if (!sources.scope.empty()) {
      if (!lies_in(full_name, sources.scope)) continue;
      name = full_name.substr(sources.scope.size() + 1);
    } else if (std::ranges::any_of(sources.other_tables, [&](const auto& table) {
                 return table == "*" ? full_name.find('.') != std::string::npos : lies_in(full_name, table);
               })) {
      continue;
    }
    if (!has_row(rows, name))
      return unknown_option(rows, name, fmt::format("{}:{}", config.path, entry.line));
    config.entries[name] = std::move(entry);
  }
  return config;
}

/// Splits "64KiB" into 64 and "KiB"; the number may have a decimal point if the unit allows it.
struct NumberAndUnit {
  double number = 0;
  std::uint64_t whole = 0;
  bool is_whole = false;
  std::string_view unit;
};

std::optional<NumberAndUnit> split_unit(std::string_view text) {
  text = trim(text);
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view digits = text.substr(0, end);
  NumberAndUnit parts;
  parts.unit = trim(text.substr(end));
  const auto [whole_end, whole_error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), parts.whole);
  parts.is_whole = whole_error == std::errc() && whole_end == digits.data() + digits.size();
  const auto [end_of_number, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), parts.number);
  if (error != std::errc() || end_of_number != digits.data() + digits.size()) return std::nullopt;
  return parts;
}

struct Unit {
  std::string_view name;
  std::uint64_t size;
};

/// number x unit, exact for whole numbers, rounded for others; nullopt if it exceeds `most`.
std::optional<std::uint64_t> scale(const NumberAndUnit& parts, std::span<const Unit> units,
                                   std::uint64_t most) {
  const auto unit = std::ranges::find(units, parts.unit, &Unit::name);
  if (unit == units.end()) return std::nullopt;
  if (parts.is_whole) {
    if (parts.whole > most / unit->size) return std::nullopt;
    return parts.whole * unit->size;
  }
  const double product = std::round(parts.number * static_cast<double>(unit->size));
  if (!(product < static_cast<double>(most))) return std::nullopt;
  return static_cast<std::uint64_t>(product);
}

constexpr std::uint64_t kibi = 1024;
constexpr std::array byte_units = std::to_array<Unit>({
    {"", 1},
    {"B", 1},
    {"K", kibi},
    {"KiB", kibi},
    {"KB", 1000},
    {"k", kibi},
    {"kB", 1000},
    {"M", kibi* kibi},
    {"MiB", kibi* kibi},
    {"MB", 1'000'000},
    {"G", kibi* kibi* kibi},
    {"GiB", kibi* kibi* kibi},
    {"GB", 1'000'000'000},
    {"T", kibi* kibi* kibi* kibi},
    {"TiB", kibi* kibi* kibi* kibi},
    {"TB", 1'000'000'000'000},
});
constexpr std::array time_units = std::to_array<Unit>({
    {"ns", 1},
    {"us", 1000},
    {"ms", 1'000'000},
    {"s", 1'000'000'000},
    {"min", 60'000'000'000},
    {"h", 3'600'000'000'000},
});

}  // namespace

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::string variable_name(std::string_view scope, std::string_view name) {
  std::string variable = "HEADRACE_";
  if (!scope.empty()) variable.append(scope).push_back('_');
  variable += name;
  for (char& c : variable) {
    if (c == '.' || c == '-') c = '_';
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return variable;
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  if (const auto parts = split_unit(text)) {
    if (const auto count = scale(*parts, byte_units, ~std::uint64_t{0})) return *count;
  }
  return make_error(Code::invalid_argument,
                    "\"{}\" is not a number of bytes: write for example 4096, 64KiB or 4M", text);
}

Result<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  if (auto parts = split_unit(text)) {
    if (parts->unit.empty() && parts->number == 0) parts->unit = "ns";
    if (const auto count = scale(*parts, time_units, static_cast<std::uint64_t>(INT64_MAX))) {
      return std::chrono::nanoseconds(static_cast<std::int64_t>(*count));
    }
  }
  return make_error(Code::invalid_argument,
                    "\"{}\" is not a duration: write a number and ns, us, ms, s, min or h, as 50us", text);
}

Result<Options> Options::resolve(std::span<const OptionRow> rows, const OptionSources& sources) {
  for (const auto& [name, text] : sources.given) {
    if (!has_row(rows, name)) return unknown_option(rows, name, "given by the caller");
  }
  HEADRACE_TRY(config, read_config(rows, sources));
  Options options(rows);
  options.scope_ = sources.scope;
  for (const OptionRow& row : rows) {
    const std::string variable = variable_name(sources.scope, row.name);
    OptionValue& value = options.values_[row.name];
    if (const auto given = sources.given.find(row.name); given != sources.given.end()) {
      value = {given->second, OptionOrigin::caller, "the caller"};
    } else if (const auto set = sources.environment(variable)) {
      value = {*set, OptionOrigin::environment, variable};
    } else if (const auto entry = config.entries.find(row.name); entry != config.entries.end()) {
      value = {entry->second.text, OptionOrigin::file, fmt::format("{}:{}", config.path, entry->second.line)};
    } else {
      value = {row.default_value, OptionOrigin::standard, "default"};
    }
  }
  return options;
}

Result<OptionValue> Options::value(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return unknown_option(rows_, name, "asked for by the program");
  return found->second;
}

namespace {

std::string context(std::string_view scope, std::string_view name, const OptionValue& value) {
  return fmt::format("option {}{}{} (from {})", scope, scope.empty() ? "" : ".", name, value.where);
}

}  // namespace

Result<std::int64_t> Options::integer(std::string_view name) const {
  HEADRACE_TRY(value, this->value(name));
  const std::string_view text = trim(value.text);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && !text.empty()) return number;
  return make_error(Code::invalid_argument, "{}: \"{}\" is not a whole number", context(scope_, name, value),
                    value.text);
}

Result<std::uint64_t> Options::bytes(std::string_view name) const {
  HEADRACE_TRY(value, this->value(name));
  auto count = parse_bytes(value.text);
  if (!count) return std::move(count).error().within(context(scope_, name, value));
  return count;
}

Result<std::chrono::nanoseconds> Options::duration(std::string_view name) const {
  HEADRACE_TRY(value, this->value(name));
  auto span = parse_duration(value.text);
  if (!span) return std::move(span).error().within(context(scope_, name, value));
  return span;
}

Result<bool> Options::boolean(std::string_view name) const {
  HEADRACE_TRY(value, this->value(name));
  const std::string_view text = trim(value.text);
  if (text == "true" || text == "yes" || text == "on" || text == "1") return true;
  if (text == "false" || text == "no" || text == "off" || text == "0") return false;
  return make_error(Code::invalid_argument, "{}: \"{}\" is neither true (yes, on, 1) nor false (no, off, 0)",
                    context(scope_, name, value), value.text);
}

Result<std::string> Options::text(std::string_view name) const {
  HEADRACE_TRY(value, this->value(name));
  return std::move(value.text);
}

Result<std::vector<std::string>> Options::list(std::string_view name) const {
  HEADRACE_TRY(value, this->value(name));
  std::vector<std::string> parts;
  for (const std::string_view part : split_list(value.text)) parts.emplace_back(part);
  return parts;
}

}  // namespace headrace
