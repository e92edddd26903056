// SPDX-License-Identifier: Apache-2.0
#include "engine/plugin_host.hpp"

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/hash.hpp"
#include "base/unique_fd.hpp"

#include <dlfcn.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

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
constexpr auto probe_timeout = std::chrono::seconds(10);

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

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
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

std::map<std::string, std::pair<std::string, bool>> PluginHost::files() const {
  std::map<std::string, std::pair<std::string, bool>> files;  // name -> path, own
  const auto scan = [&](const std::vector<std::string>& folders, bool own) {
    for (const std::string& folder : folders) {
      std::error_code ignored;
      for (const auto& entry : fs::directory_iterator(folder, ignored)) {
        const std::string file = entry.path().filename().string();
        if (!file.starts_with(file_prefix) || !file.ends_with(file_suffix)) continue;
        const std::string name =
            file.substr(file_prefix.size(), file.size() - file_prefix.size() - file_suffix.size());
        files.try_emplace(name, entry.path().string(), own);
      }
    }
  };
  scan(paths_.own_folders, true);  // a stranger cannot take the place of a backend that came with Headrace
  scan(paths_.other_folders, false);
  return files;
}

FoundBackend PluginHost::find(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = found_.find(name); at != found_.end()) return at->second;
  }
  const auto all = files();
  const auto at = all.find(name);
  if (at == all.end()) {
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
  FoundBackend found = load(name, at->second.first, at->second.second);
  const std::lock_guard lock(mutex_);
  return found_.try_emplace(name, std::move(found)).first->second;
}

std::vector<FoundBackend> PluginHost::find_all() {
  std::map<std::string, FoundBackend> all;
  {
    const std::lock_guard lock(mutex_);
    all = found_;
  }
  for (const auto& [name, file] : files())
    if (!all.contains(name)) all.emplace(name, find(name));
  std::vector<FoundBackend> result;
  for (auto& [name, found] : all) result.push_back(std::move(found));
  return result;
}

FoundBackend PluginHost::load(const std::string& name, const std::string& path, bool own) {
  FoundBackend found{name, path, nullptr, {}};
  const auto refuse = [&](const std::string& why) {
    found.refusal = fmt::format("plugin {} refused: {}", path, why);
    log_.warn("{}", found.refusal);
    return found;
  };
  if (!name_ok(name)) return refuse("its name is not [a-z0-9_]+");
  if (!own) {
    if (auto probed = probe(path); !probed) return refuse(probed.error().message);
  }
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return refuse(why != nullptr ? why : "dlopen gave no reason");
  }
  const auto function =
      reinterpret_cast<headrace_backend_v1_function>(::dlsym(library, HEADRACE_BACKEND_SYMBOL));
  if (function == nullptr)
    return refuse(fmt::format("it does not export {}: is it a Headrace plugin?", HEADRACE_BACKEND_SYMBOL));
  const headrace_backend_v1* table = nullptr;
  try {
    table = function();
  } catch (const std::exception& e) {
    return refuse(fmt::format("{} threw: {}", HEADRACE_BACKEND_SYMBOL, e.what()));
  } catch (...) {
    return refuse(fmt::format("{} threw", HEADRACE_BACKEND_SYMBOL));
  }
  if (auto checked = check_table(table, name); !checked) return refuse(checked.error().message);
  found.table = table;
  log_.debug("loaded backend {} {} from {}", name, table->version, path);
  return found;
}

/// Lets a child process load and open the plugin, so that a crash or a hang ends only the child.
Result<void> PluginHost::probe(const std::string& path) {
  const std::string content = read_file(path);
  if (content.empty())
    return make_error(Code::not_found, "it cannot be read: look at the file's permissions");
  const std::uint64_t digest = hash64(std::as_bytes(std::span(content)));
  const fs::path verdict_file =
      paths_.cache_folder.empty()
          ? fs::path()
          : fs::path(paths_.cache_folder) /
                fmt::format("{:016x}-{}.{}", digest, HEADRACE_BACKEND_ABI_MAJOR, HEADRACE_BACKEND_ABI_MINOR);
  if (!verdict_file.empty() && fs::exists(verdict_file)) {
    const std::string verdict = read_file(verdict_file);
    if (verdict == "ok") return {};
    return make_error(Code::not_supported, "{} (remembered in {}; delete that file to try again)", verdict,
                      verdict_file.string());
  }

  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return os_error(errno, "make a pipe for the trial");
  UniqueFd read_end(out[0]), write_end(out[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), 1);
  char* const arguments[] = {const_cast<char*>(paths_.probe_program.c_str()), const_cast<char*>(path.c_str()),
                             nullptr};
  pid_t child = -1;
  const int failed =
      ::posix_spawn(&child, paths_.probe_program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return os_error(failed, "start {} to try it in a child process", paths_.probe_program);
  write_end.reset();

  int status = 0;
  const Deadline deadline = Deadline::after(probe_timeout);
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (deadline.expired()) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return make_error(
          Code::timed_out,
          "it did not finish its trial in a child process within 10 s: its create() may not wait, and the "
          "machine may be busy");  // not remembered: the machine may have been busy
    }
    ::usleep(2000);
  }
  std::string said(512, '\0');
  const ssize_t length = ::read(read_end.get(), said.data(), said.size());
  said.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  std::string verdict = "ok";
  if (WIFSIGNALED(status)) {
    verdict = fmt::format("it ended its trial in a child process with signal {} ({})", WTERMSIG(status),
                          ::strsignal(WTERMSIG(status)));
  } else if (WEXITSTATUS(status) != 0) {
    verdict = said.empty()
                  ? fmt::format("its trial in a child process ended with exit status {}", WEXITSTATUS(status))
                  : said;
  }
  if (!verdict_file.empty()) {
    std::error_code ignored;
    fs::create_directories(verdict_file.parent_path(), ignored);
    const fs::path fresh = verdict_file.string() + fmt::format(".{}", ::getpid());
    std::ofstream(fresh) << verdict;
    fs::rename(fresh, verdict_file, ignored);
  }
  if (verdict != "ok") return make_error(Code::not_supported, "{}", verdict);
  return {};
}

}  // namespace headrace::engine
