// SPDX-License-Identifier: Apache-2.0
#include "engine/plugin_trial.hpp"

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/hash.hpp"
#include "base/unique_fd.hpp"

#include <headrace/plugin/backend_v1.h>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace headrace::engine {
namespace fs = std::filesystem;
namespace {

constexpr auto patience = std::chrono::seconds(10);
constexpr std::string_view passed = "ok";

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Where the verdict on a plugin of that content is kept.
fs::path verdict_file(const std::string& folder, const std::string& content) {
  if (folder.empty()) return {};
  const std::uint64_t digest = hash64(std::as_bytes(std::span(content)));
  return fs::path(folder) /
         fmt::format("{:016x}-{}.{}", digest, HEADRACE_BACKEND_ABI_MAJOR, HEADRACE_BACKEND_ABI_MINOR);
}

/// Whole or not at all: other agents may read and write it now.
void remember(const fs::path& file, std::string_view verdict) {
  std::error_code ignored;
  fs::create_directories(file.parent_path(), ignored);
  const fs::path fresh = file.string() + fmt::format(".{}", ::getpid());
  std::ofstream(fresh) << verdict;
  fs::rename(fresh, file, ignored);
}

struct Child {
  pid_t process = -1;
  UniqueFd said;  ///< what it writes to its standard output
};

Result<Child> start(const std::string& program, const std::string& plugin) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return os_error(errno, "make a pipe for the trial");
  Child child{-1, UniqueFd(ends[0])};
  const UniqueFd write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), 1);
  char* const arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(plugin.c_str()), nullptr};
  const int failed = ::posix_spawn(&child.process, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return os_error(failed, "start {} to try it in a child process", program);
  return child;
}

/// Its exit status.
Result<int> await(pid_t process) {
  int status = 0;
  const Deadline deadline = Deadline::after(patience);
  while (::waitpid(process, &status, WNOHANG) == 0) {
    if (deadline.expired()) {
      ::kill(process, SIGKILL);
      ::waitpid(process, &status, 0);
      return make_error(Code::timed_out,
                        "it did not finish its trial in a child process within 10 s: its create() may not "
                        "wait, and the machine may be busy");
    }
    ::usleep(2000);
  }
  return status;
}

std::string verdict_of(int status, int said) {
  if (WIFSIGNALED(status)) {
    return fmt::format("it ended its trial in a child process with signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) == 0) return std::string(passed);
  std::string text(512, '\0');
  const ssize_t length = ::read(said, text.data(), text.size());
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  if (!text.empty()) return text;
  return fmt::format("its trial in a child process ended with exit status {}", WEXITSTATUS(status));
}

}  // namespace

Result<void> try_in_child(const std::string& plugin, const std::string& program,
                          const std::string& cache_folder) {
  const std::string content = read_file(plugin);
  if (content.empty())
    return make_error(Code::not_found, "it cannot be read: look at the file's permissions");
  const fs::path file = verdict_file(cache_folder, content);
  if (!file.empty() && fs::exists(file)) {
    const std::string verdict = read_file(file);
    if (verdict == passed) return {};
    return make_error(Code::not_supported, "{} (remembered in {}; delete that file to try again)", verdict,
                      file.string());
  }
  HEADRACE_TRY(child, start(program, plugin));
  HEADRACE_TRY(status, await(child.process));
  const std::string verdict = verdict_of(status, child.said.get());
  if (!file.empty()) remember(file, verdict);
  if (verdict != passed) return make_error(Code::not_supported, "{}", verdict);
  return {};
}

}  // namespace headrace::engine
