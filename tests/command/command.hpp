// SPDX-License-Identifier: Apache-2.0
// The command `headrace` as a user runs it: a process with arguments, two pipes and an exit code.
#pragma once

#include "support/child_ending.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

extern char** environ;

namespace headrace::test {

/// Reads the output while the process runs. The process ends with this object.
class Command {
 public:
  explicit Command(std::vector<std::string> arguments, const char* program = HEADRACE_COMMAND) {
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::array<int, 2> out_pipe{}, err_pipe{};
    if (::pipe2(out_pipe.data(), O_CLOEXEC) != 0 || ::pipe2(err_pipe.data(), O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, out_pipe[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, err_pipe[1], STDERR_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (::posix_spawn(&id_, program, &actions, nullptr, argv.data(), environ) != 0) id_ = -1;
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(out_pipe[1]);
    ::close(err_pipe[1]);
    out_ = out_pipe[0];
    err_ = err_pipe[0];
  }
  ~Command() {
    if (id_ > 0) {
      ::kill(id_, SIGKILL);
      ::waitpid(id_, nullptr, 0);
    }
    ::close(out_);
    ::close(err_);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  /// The first line of stdout. If the process ends or 60 s pass first, the output so far.
  std::string first_line() {
    read_until([this] { return out.find('\n') != std::string::npos; });
    return out.substr(0, out.find('\n'));
  }
  /// Whether stderr gets this text before the process ends or 60 s pass.
  bool complains(const std::string& text) {
    const auto there = [&] { return err.find(text) != std::string::npos; };
    read_until(there);
    return there();
  }
  [[nodiscard]] bool running() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }
  void signal(int number) const { ::kill(id_, number); }
  /// Waits for the end; kills it after two minutes. The exit code, or minus the signal, which `err` then
  /// names.
  int wait() {
    read_until([] { return false; });
    if (std::chrono::steady_clock::now() >= give_up_) ::kill(id_, SIGKILL);
    int status = 0;
    ::waitpid(std::exchange(id_, -1), &status, 0);
    if (WIFSIGNALED(status)) err += "the command " + ending_text(status) + "\n";
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void close_output() { ::close(std::exchange(out_, -1)); }

  std::string out, err;

 private:
  template <class Enough>
  void read_until(Enough enough) {
    for (int open = 2; open > 0 && !enough() && std::chrono::steady_clock::now() < give_up_;) {
      std::array<pollfd, 2> waits{pollfd{ended_[0] ? -1 : out_, POLLIN, 0},
                                  pollfd{ended_[1] ? -1 : err_, POLLIN, 0}};
      ::poll(waits.data(), waits.size(), 100);
      open = 2;
      for (std::size_t i = 0; i < 2; ++i) {
        if (waits[i].fd < 0) {
          --open;
          continue;
        }
        if (waits[i].revents == 0) continue;
        std::array<char, 65536> buffer{};
        const ssize_t n = ::read(waits[i].fd, buffer.data(), buffer.size());
        if (n > 0) (i == 0 ? out : err).append(buffer.data(), static_cast<std::size_t>(n));
        if (n == 0) ended_[i] = true;
      }
    }
  }

  pid_t id_ = -1;
  int out_ = -1, err_ = -1;
  std::array<bool, 2> ended_{};
  const std::chrono::steady_clock::time_point give_up_ =
      std::chrono::steady_clock::now() + std::chrono::minutes(2);
};

struct Outcome {
  int code;
  std::string out, err;
};

inline Outcome run_command(std::vector<std::string> arguments) {
  Command command(std::move(arguments));
  const int code = command.wait();
  return {code, command.out, command.err};
}

inline std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    widest = std::max(widest, end - at);
    at = end + 1;
  }
  return widest;
}

}  // namespace headrace::test
