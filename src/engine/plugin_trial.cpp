// SPDX-License-Identifier: Apache-2.0
#include "engine/plugin_trial.hpp"

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/unique_fd.hpp"
#include "engine/verdict_folder.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace headrace::engine {
namespace fs = std::filesystem;
namespace {

constexpr auto patience = std::chrono::seconds(10);
constexpr std::string_view passed = "ok";
constexpr std::size_t most_words =
    65536;  // what a pipe holds: the last word comes after a talkative plugin's
constexpr std::string_view passed_word = "headrace: trial passed\n";  // tools/probe_plugin says it last

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
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

/// How it ended; nullopt: it ended, and the system gave its status to nobody (SIGCHLD is ignored) or to a
/// thread of the caller's that waits for every child.
Result<std::optional<int>> await(pid_t process) {
  int status = 0;
  const Deadline deadline = Deadline::after(patience);
  pid_t ended = 0;
  while ((ended = ::waitpid(process, &status, WNOHANG)) == 0) {
    if (deadline.expired()) {
      ::kill(process, SIGKILL);
      ::waitpid(process, &status, 0);
      return make_error(Code::timed_out,
                        "it did not finish its trial in a child process within 10 s: its create() may not "
                        "wait, and the machine may be busy");
    }
    ::usleep(2000);
  }
  return ended == process ? std::optional(status) : std::nullopt;
}

/// What the child has written. It has ended, but a process that it left behind may hold the pipe open.
std::string words_of(int said) {
  std::string text(most_words, '\0');
  ::fcntl(said, F_SETFL, O_NONBLOCK);
  const ssize_t length = ::read(said, text.data(), text.size());
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return text;
}

struct Verdict {
  std::string text;
  bool is_known = true;  ///< false: the plugin may be good; it is not remembered
};

/// The child's last word is what counts: it says that the trial was passed, and a child that crashes does
/// not.
Verdict verdict_of(std::optional<int> status, std::string words) {
  if (status && WIFSIGNALED(*status))
    return {fmt::format("it ended its trial in a child process with signal {} ({})", WTERMSIG(*status),
                        ::strsignal(WTERMSIG(*status)))};
  if (words.ends_with(passed_word) && (!status || WEXITSTATUS(*status) == 0)) return {std::string(passed)};
  if (!words.empty() && !words.ends_with(passed_word)) return {std::move(words)};
  if (status)
    return {fmt::format("its trial in a child process ended with exit status {}", WEXITSTATUS(*status))};
  return {
      "its trial in a child process ended early, and how is unknown, because this process ignores SIGCHLD "
      "or waits for all of its children: start it with SIGCHLD at its default",
      false};
}

}  // namespace

Result<void> try_in_child(const std::string& plugin, const std::string& program,
                          const VerdictFolder& verdicts) {
  const std::string content = read_file(plugin);
  if (content.empty())
    return make_error(Code::not_found, "it cannot be read: look at the file's permissions");
  if (const auto verdict = verdicts.find(content)) {
    if (*verdict == passed) return {};
    return make_error(Code::not_supported, "{} (remembered in {}; delete that file to try again)", *verdict,
                      verdicts.file(content));
  }
  HEADRACE_TRY(child, start(program, plugin));
  HEADRACE_TRY(status, await(child.process));
  const Verdict verdict = verdict_of(status, words_of(child.said.get()));
  if (verdict.is_known) verdicts.remember(content, verdict.text);
  if (verdict.text != passed) return make_error(Code::not_supported, "{}", verdict.text);
  return {};
}

}  // namespace headrace::engine
