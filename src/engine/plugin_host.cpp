// SPDX-License-Identifier: Apache-2.0
#include "engine/plugin_host.hpp"

#include "base/errors.hpp"
#include "base/unique_fd.hpp"
#include "engine/plugin_trial.hpp"
#include "engine/verdict_folder.hpp"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace headrace::engine {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view file_prefix = "headrace_backend_";
constexpr std::string_view file_suffix = ".so";

bool name_ok(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

/// The folder of the library (or program) that holds this very code.
fs::path own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&check_table), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  return fs::canonical(info.dli_fname, ignored).parent_path();
}

/// The required entries of the table, for the sentence that names the missing one.
Result<void> check_entries(const headrace_backend_v1& t) {
  const std::pair<const char*, bool> entries[] = {{"create", t.create != nullptr},
                                                  {"destroy", t.destroy != nullptr},
                                                  {"info", t.info != nullptr},
                                                  {"connection_info", t.connection_info != nullptr},
                                                  {"connect", t.connect != nullptr},
                                                  {"disconnect", t.disconnect != nullptr},
                                                  {"register_region", t.register_region != nullptr},
                                                  {"deregister_region", t.deregister_region != nullptr},
                                                  {"export_region", t.export_region != nullptr},
                                                  {"load_local", t.load_local != nullptr},
                                                  {"load_remote", t.load_remote != nullptr},
                                                  {"unload", t.unload != nullptr},
                                                  {"prepare", t.prepare != nullptr},
                                                  {"post", t.post != nullptr},
                                                  {"poll", t.poll != nullptr},
                                                  {"cancel", t.cancel != nullptr},
                                                  {"release", t.release != nullptr},
                                                  {"notify", t.notify != nullptr},
                                                  {"progress", t.progress != nullptr},
                                                  {"descriptor", t.descriptor != nullptr},
                                                  {"cost", t.cost != nullptr}};
  for (const auto& [name, there] : entries) {
    if (!there)
      return make_error(Code::not_supported,
                        "its table has no entry `{}`: fill in every required entry of backend_v1.h", name);
  }
  if ((t.map == nullptr) != (t.unmap == nullptr))
    return make_error(Code::not_supported,
                      "its table has only one of `map` and `unmap`: offer both or neither");
  if (t.option_count > 0 && (t.options == nullptr || t.option_size < sizeof(headrace_option_v1))) {
    return make_error(Code::not_supported,
                      "its table announces {} options in rows of {} bytes; a row has at least {}",
                      t.option_count, t.option_size, sizeof(headrace_option_v1));
  }
  return {};
}

/// The files of a folder; none if it is not there.
Result<std::vector<fs::path>> paths_in(const std::string& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::directory_iterator files(folder, error);
  for (; !error && files != fs::directory_iterator(); files.increment(error)) paths.push_back(files->path());
  if (error && code_of_errno(error.value()) == Code::exhausted)
    return os_error(error.value(), "read the folder {}", folder);
  return paths;
}

/// dlopen says why only in words.
Result<void> check_readable(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file ? Result<void>() : os_error(errno, "open {}", path);
}

/// Whether this process has loaded it. It stays loaded, so that a trial could keep nothing away any more.
bool is_loaded(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return false;
  ::dlclose(library);
  return true;
}

/// The table that a plugin's one function returns; it stays loaded to the end of the process.
Result<const headrace_backend_v1*> open_plugin(const std::string& path) {
  HEADRACE_TRY_VOID(check_readable(path));
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return make_error(Code::not_supported, "{}", why != nullptr ? why : "dlopen gave no reason");
  }
  const auto function =
      reinterpret_cast<headrace_backend_v1_function>(::dlsym(library, HEADRACE_BACKEND_SYMBOL));
  if (function == nullptr)
    return make_error(Code::not_supported, "it does not export {}: is it a Headrace plugin?",
                      HEADRACE_BACKEND_SYMBOL);
  try {
    return function();
  } catch (const std::exception& e) {
    return make_error(Code::not_supported, "{} threw: {}", HEADRACE_BACKEND_SYMBOL, e.what());
  } catch (...) {
    return make_error(Code::not_supported, "{} threw", HEADRACE_BACKEND_SYMBOL);
  }
}

}  // namespace

Result<void> check_table(const headrace_backend_v1* table, std::string_view expected_name) {
  if (table == nullptr)
    return make_error(Code::not_supported, "{}() returned no table", HEADRACE_BACKEND_SYMBOL);
  if (table->struct_size < HEADRACE_BACKEND_V1_SIZE) {
    return make_error(Code::not_supported,
                      "its table has struct_size {}, the first version has {}: build it against backend_v1.h "
                      "of Headrace 0.1 or later",
                      table->struct_size, HEADRACE_BACKEND_V1_SIZE);
  }
  if (table->abi_major != HEADRACE_BACKEND_ABI_MAJOR) {
    return make_error(
        Code::not_supported,
        "it speaks plugin version {}.{}, this Headrace speaks {}.{}: use a plugin built for major version {}",
        table->abi_major, table->abi_minor, HEADRACE_BACKEND_ABI_MAJOR, HEADRACE_BACKEND_ABI_MINOR,
        HEADRACE_BACKEND_ABI_MAJOR);
  }
  if (table->name == nullptr || !name_ok(table->name))
    return make_error(Code::not_supported, "its table has no valid name; names are [a-z0-9_]+");
  if (!expected_name.empty() && table->name != expected_name) {
    return make_error(Code::not_supported, "its table is called `{}` but its file `{}{}{}`: rename one",
                      table->name, file_prefix, expected_name, file_suffix);
  }
  if (table->version == nullptr) return make_error(Code::not_supported, "its table has no version: name one");
  return check_entries(*table);
}

PluginPaths default_plugin_paths(const std::vector<std::string>& plugin_path) {
  PluginPaths paths;
  const fs::path folder = own_folder();
  paths.own_folders.push_back((folder / "backends").string());
  paths.probe_program = (folder / "headrace-probe-plugin").string();
  paths.other_folders = plugin_path;
  return paths;
}

void PluginHost::link_in(const headrace_backend_v1* table) {
  FoundBackend found{table != nullptr && table->name != nullptr ? table->name : "?", "linked in", table, {}};
  if (auto checked = check_table(table, {}); !checked) {
    found.table = nullptr;
    found.refusal = checked.error().message;
  }
  const std::lock_guard lock(mutex_);
  found_[found.name] = std::move(found);
}

Result<PluginHost::Files> PluginHost::files() const {
  Files files;
  const auto scan = [&](const std::vector<std::string>& folders, bool own) -> Result<void> {
    for (const std::string& folder : folders) {
      HEADRACE_TRY(paths, paths_in(folder));
      for (const fs::path& path : paths) {
        const std::string file = path.filename().string();
        if (!file.starts_with(file_prefix) || !file.ends_with(file_suffix)) continue;
        const std::string name =
            file.substr(file_prefix.size(), file.size() - file_prefix.size() - file_suffix.size());
        files.try_emplace(name, path.string(), own);
      }
    }
    return {};
  };
  // First: a stranger cannot take the place of a backend that came with Headrace.
  HEADRACE_TRY_VOID(scan(paths_.own_folders, true));
  HEADRACE_TRY_VOID(scan(paths_.other_folders, false));
  return files;
}

FoundBackend PluginHost::find(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = found_.find(name); at != found_.end()) return at->second;
  }
  const auto all = files();
  if (!all)
    return {name, {}, nullptr, fmt::format("look for backend {}: {}", name, all.error().message), all.code()};
  const auto at = all->find(name);
  if (at == all->end()) return unknown(name, *all);
  FoundBackend found = load(name, at->second.first, at->second.second);
  if (found.code == Code::exhausted) return found;  // the next call may find what was missing
  const std::lock_guard lock(mutex_);
  return found_.try_emplace(name, std::move(found)).first->second;
}

FoundBackend PluginHost::unknown(const std::string& name, const Files& all) const {
  std::string known;
  for (const auto& [other, file] : all)
    if (other != model_backend) known += (known.empty() ? "" : ", ") + other;
  std::string folders;
  for (const auto* list : {&paths_.own_folders, &paths_.other_folders})
    for (const std::string& folder : *list) folders += (folders.empty() ? "" : ", ") + folder;
  return {name,
          {},
          nullptr,
          fmt::format("there is no backend `{}` in {}; there are: {}", name, folders,
                      known.empty() ? "none" : known)};
}

Result<std::vector<FoundBackend>> PluginHost::find_all() {
  HEADRACE_TRY(files, this->files());
  std::map<std::string, FoundBackend> all;
  {
    const std::lock_guard lock(mutex_);
    all = found_;
  }
  for (const auto& [name, file] : files)
    if (!all.contains(name)) all.emplace(name, find(name));
  std::vector<FoundBackend> result;
  for (auto& [name, found] : all) result.push_back(std::move(found));
  return result;
}

FoundBackend PluginHost::load(const std::string& name, const std::string& path, bool own) {
  FoundBackend found{name, path, nullptr, {}};
  auto table = checked_table(name, path, own);
  if (table) {
    found.table = *table;
    log_.debug("loaded backend {} {} from {}", name, found.table->version, path);
  } else {
    found.refusal = fmt::format("plugin {} refused: {}", path, table.error().message);
    if (table.code() == Code::exhausted) found.code = Code::exhausted;
    log_.warn("{}", found.refusal);
  }
  return found;
}

/// A folder of verdicts that cannot be used costs a trial each time.
Result<void> PluginHost::try_stranger(const std::string& path) const {
  auto verdicts = VerdictFolder::open(paths_.cache_folder);
  if (!verdicts) {
    log_.warn("trials of plugins are not remembered (option plugin_cache): {}", verdicts.error().message);
    verdicts = VerdictFolder::open({});
  }
  return try_in_child(path, paths_.probe_program, *verdicts);
}

Result<const headrace_backend_v1*> PluginHost::checked_table(const std::string& name, const std::string& path,
                                                             bool own) const {
  if (!name_ok(name)) return make_error(Code::not_supported, "its name is not [a-z0-9_]+");
  // Each agent of a program asks, and its trial reads the whole file, to find the verdict on it.
  if (!own && !is_loaded(path)) HEADRACE_TRY_VOID(try_stranger(path));
  HEADRACE_TRY(table, open_plugin(path));
  HEADRACE_TRY_VOID(check_table(table, name));
  return table;
}

}  // namespace headrace::engine
