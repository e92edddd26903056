// SPDX-License-Identifier: Apache-2.0
#include "collectives/comm_library.hpp"

#include "agent/core_options.hpp"
#include "base/errors.hpp"
#include "base/names.hpp"
#include "base/options.hpp"
#include "engine/plugin_host.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>
#include <vector>

namespace headrace::collectives {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view file_prefix = "libheadrace_comm_";
constexpr std::string_view file_suffix = ".so";
constexpr std::string_view variable_scope = "comm_lib";

/// The folder of Headrace's own plugins, then those of option plugin_path.
std::vector<std::string> folders() {
  OptionSources sources;
  sources.other_tables = {"*"};
  std::vector<std::string> more;
  if (const auto options = Options::resolve(core_options, sources))
    if (auto list = options->list("plugin_path")) more = std::move(*list);
  engine::PluginPaths paths = engine::default_plugin_paths(more);
  std::vector<std::string> all = std::move(paths.own_folders);
  all.insert(all.end(), paths.other_folders.begin(), paths.other_folders.end());
  return all;
}

std::string file_of(const std::string& name) { return fmt::format("{}{}{}", file_prefix, name, file_suffix); }

Result<void> check_entries(const headrace_comm_backend_v1& table) {
  const std::pair<const char*, bool> entries[] = {{"open", table.open != nullptr},
                                                  {"close", table.close != nullptr},
                                                  {"issue", table.issue != nullptr},
                                                  {"abort", table.abort != nullptr}};
  for (const auto& [name, there] : entries) {
    if (!there)
      return make_error(Code::not_supported,
                        "its table has no entry `{}`: fill in every required entry of comm_v1.h", name);
  }
  if ((table.group_start == nullptr) != (table.group_end == nullptr))
    return make_error(Code::not_supported,
                      "its table has one of `group_start` and `group_end`: fill in both, or none");
  return {};
}

/// Entries of later versions, which a shorter table does not have.
Result<void> check_later_entries(const headrace_comm_backend_v1& table) {
  if ((table.tensor_register == nullptr) != (table.tensor_deregister == nullptr))
    return make_error(
        Code::not_supported,
        "its table has one of `tensor_register` and `tensor_deregister`: fill in both, or none");
  if ((table.suspend == nullptr) != (table.resume == nullptr))
    return make_error(Code::not_supported,
                      "its table has one of `suspend` and `resume`: fill in both, or none");
  if ((table.init_handle == nullptr) != (table.reconfigure == nullptr))
    return make_error(Code::not_supported,
                      "its table has one of `init_handle` and `reconfigure`: fill in both, or none");
  const bool has_windows = table.window_open != nullptr;
  if ((table.window_close != nullptr) == has_windows && (table.window_issue != nullptr) == has_windows)
    return {};
  return make_error(
      Code::not_supported,
      "its table has some of `window_open`, `window_close` and `window_issue`: fill in all, or none");
}

/// What the one function of a library returns; it stays loaded to the end of the process.
Result<const headrace_comm_backend_v1*> open_library(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return make_error(Code::not_supported, "{}", why != nullptr ? why : "dlopen gave no reason");
  }
  const auto function = reinterpret_cast<headrace_comm_v1_function>(::dlsym(library, HEADRACE_COMM_SYMBOL));
  if (function == nullptr)
    return make_error(Code::not_supported, "it does not export {}: is it a backend of communicators?",
                      HEADRACE_COMM_SYMBOL);
  try {
    return function();
  } catch (const std::exception& thrown) {
    return make_error(Code::not_supported, "{} threw: {}", HEADRACE_COMM_SYMBOL, thrown.what());
  } catch (...) {
    return make_error(Code::not_supported, "{} threw", HEADRACE_COMM_SYMBOL);
  }
}

Result<headrace_comm_backend_v1> load(const std::string& name, const std::string& path) {
  HEADRACE_TRY(table, open_library(path));
  if (table == nullptr)
    return make_error(Code::not_supported, "{}() returned no table: it cannot be used on this machine",
                      HEADRACE_COMM_SYMBOL);
  return check_comm_table(table, name);
}

}  // namespace

bool is_backend_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

Result<headrace_comm_backend_v1> check_comm_table(const headrace_comm_backend_v1* table,
                                                  std::string_view expected_name) {
  if (table == nullptr) return make_error(Code::invalid_argument, "the table of the backend is null");
  if (table->struct_size < HEADRACE_COMM_BACKEND_V1_SIZE)
    return make_error(
        Code::not_supported,
        "its table has struct_size {}, the first version has {}: build it with comm_v1.h of this "
        "Headrace or a later one",
        table->struct_size, HEADRACE_COMM_BACKEND_V1_SIZE);
  if (table->abi_major != HEADRACE_COMM_ABI_MAJOR)
    return make_error(
        Code::not_supported,
        "its table has version {}.{}, this Headrace has {}.{}: use a backend built for major version {}",
        table->abi_major, table->abi_minor, HEADRACE_COMM_ABI_MAJOR, HEADRACE_COMM_ABI_MINOR,
        HEADRACE_COMM_ABI_MAJOR);
  if (table->name == nullptr || !is_backend_name(table->name))
    return make_error(Code::not_supported,
                      "its table has no valid name; names are [a-z0-9_]+ of at most 64 letters");
  if (!expected_name.empty() && table->name != expected_name)
    return make_error(Code::not_supported, "its table is called `{}` but its library `{}`: rename one",
                      table->name, expected_name);
  if (table->version == nullptr) return make_error(Code::not_supported, "its table has no version: name one");
  if (table->devices == 0)
    return make_error(Code::not_supported,
                      "its table names no devices: set `devices` to the memory that it moves");
  HEADRACE_TRY_VOID(check_entries(*table));
  headrace_comm_backend_v1 known{};
  std::memcpy(&known, table, std::min(table->struct_size, sizeof known));
  HEADRACE_TRY_VOID(check_later_entries(known));
  return known;
}

Result<std::optional<headrace_comm_backend_v1>> load_comm_library(const std::string& name,
                                                                  std::string* where) {
  using Found = std::optional<headrace_comm_backend_v1>;
  if (!is_backend_name(name)) return Found();
  const std::string variable = variable_name(variable_scope, name);
  std::string path = environment_variable(variable).value_or("");
  std::error_code ignored;
  if (!path.empty() && !fs::exists(path, ignored))
    return make_error(Code::not_found, "the variable {} names {}, which is not there: correct it", variable,
                      name_text(path));
  for (const std::string& folder : folders()) {
    if (!path.empty()) break;
    const fs::path candidate = fs::path(folder) / file_of(name);
    if (fs::exists(candidate, ignored)) path = candidate.string();
  }
  if (where != nullptr) *where = path;
  if (path.empty()) return Found();
  auto table = load(name, path);
  if (!table) return std::move(table).error().within(fmt::format("library {} refused", path));
  return Found(*table);
}

std::set<std::string> comm_libraries() {
  std::set<std::string> names;
  for (const std::string& folder : folders()) {
    std::error_code error;
    fs::directory_iterator files(folder, error);
    for (; !error && files != fs::directory_iterator(); files.increment(error)) {
      const std::string file = files->path().filename().string();
      if (!file.starts_with(file_prefix) || !file.ends_with(file_suffix)) continue;
      const std::string name =
          file.substr(file_prefix.size(), file.size() - file_prefix.size() - file_suffix.size());
      if (is_backend_name(name)) names.insert(name);
    }
  }
  return names;
}

std::string where_library_may_lie(const std::string& name) {
  return fmt::format(
      "Set {} to its library, or put {} into one of the folders {} (option plugin_path adds some)",
      variable_name(variable_scope, name), file_of(name), fmt::join(folders(), ", "));
}

}  // namespace headrace::collectives
