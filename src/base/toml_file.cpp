// SPDX-License-Identifier: Apache-2.0
#include "base/toml_file.hpp"

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>

namespace headrace {
namespace {

std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  return std::nullopt;
}

std::optional<std::string> array_text(const toml::array& array) {
  std::string joined;
  for (const toml::node& element : array) {
    const std::optional<std::string> text = scalar_text(element);
    if (!text) return std::nullopt;
    joined += (joined.empty() ? "" : ",") + *text;
  }
  return joined;
}

Result<void> flatten(const toml::table& table, const std::string& prefix, const std::string& path,
                     std::map<std::string, TomlEntry>& entries) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    const int line = static_cast<int>(node.source().begin.line);
    if (const toml::table* inner = node.as_table()) {
      HEADRACE_TRY_VOID(flatten(*inner, name + ".", path, entries));
      continue;
    }
    const std::optional<std::string> text =
        node.is_array() ? array_text(*node.as_array()) : scalar_text(node);
    if (!text) {
      return make_error(Code::invalid_argument,
                        "{}:{}: {} must be text, a number, true or false, or an array of these", path, line,
                        name);
    }
    entries[name] = TomlEntry{*text, line};
  }
  return {};
}

}  // namespace

Result<std::map<std::string, TomlEntry>> read_toml(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return os_error(errno, "open the configuration file {}", path);
  std::ostringstream content;
  content << file.rdbuf();
  const toml::parse_result parsed = toml::parse(std::string_view(content.str()));
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return make_error(Code::invalid_argument, "{}:{}: not TOML: {}", path, error.source().begin.line,
                      error.description());
  }
  std::map<std::string, TomlEntry> entries;
  HEADRACE_TRY_VOID(flatten(parsed.table(), "", path, entries));
  return entries;
}

}  // namespace headrace
