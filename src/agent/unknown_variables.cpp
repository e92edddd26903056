// SPDX-License-Identifier: Apache-2.0
#include "agent/unknown_variables.hpp"

#include "base/text.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>

namespace headrace {
namespace {

constexpr std::size_t most_wrong_letters = 2;

std::vector<std::string> variables_of(const std::vector<OptionTable>& tables) {
  std::vector<std::string> names;
  for (const OptionTable& table : tables)
    for (const OptionRow& row : table.rows) names.push_back(variable_name(table.scope, row.name));
  return names;
}

bool is_of_a_backend(std::string_view name, const std::vector<OptionTable>& tables) {
  return std::ranges::any_of(tables, [name](const OptionTable& table) {
    return !table.scope.empty() && table.is_alone && name.starts_with(variable_name(table.scope, ""));
  });
}

}  // namespace

std::vector<std::string> unknown_variables(std::span<const std::string_view> environment,
                                           const std::vector<OptionTable>& tables) {
  const std::vector<std::string> known = variables_of(tables);
  const std::vector<std::string_view> candidates(known.begin(), known.end());
  std::vector<std::string> sentences;
  for (const std::string_view entry : environment) {
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with("HEADRACE_") || std::ranges::find(candidates, name) != candidates.end()) continue;
    const std::size_t most = is_of_a_backend(name, tables) ? name.size() : most_wrong_letters;
    const std::string_view nearest = nearest_name(name, candidates, most);
    if (nearest.empty()) continue;
    sentences.push_back(
        fmt::format("the variable {} of the environment is no option and has no effect: did you mean {}?",
                    name, nearest));
  }
  return sentences;
}

std::vector<std::string> unknown_entries(const std::string& path,
                                         const std::map<std::string, TomlEntry>& entries,
                                         const std::vector<OptionTable>& tables) {
  std::vector<std::string> known;
  for (const OptionTable& table : tables)
    for (const OptionRow& row : table.rows)
      if (!table.scope.empty()) known.push_back(fmt::format("{}.{}", table.scope, row.name));
  const std::vector<std::string_view> candidates(known.begin(), known.end());
  std::vector<std::string> sentences;
  for (const auto& [name, entry] : entries) {
    if (std::ranges::find(candidates, name) != candidates.end()) continue;
    const std::string_view nearest = nearest_name(name, candidates, most_wrong_letters);
    if (nearest.empty()) continue;
    sentences.push_back(fmt::format("{}:{}: {} is no option and has no effect: did you mean {}?", path,
                                    entry.line, name, nearest));
  }
  return sentences;
}

namespace {

std::vector<std::string> unknown_in_process(const std::vector<OptionTable>& tables) {
  std::vector<std::string_view> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    environment.emplace_back(*entry);
  std::vector<std::string> sentences = unknown_variables(environment, tables);
  const std::string path = environment_variable("HEADRACE_CONFIG").value_or("");
  if (path.empty()) return sentences;
  const auto entries = read_toml(path);
  if (!entries) return sentences;  // said where the options were read
  std::ranges::move(unknown_entries(path, *entries, tables), std::back_inserter(sentences));
  return sentences;
}

}  // namespace

void warn_of_unknown_options(const Log& log, const std::vector<OptionTable>& tables) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  for (const std::string& sentence : unknown_in_process(tables))
    if (said.insert(sentence).second) log.warn("{}", sentence);
}

}  // namespace headrace
