// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/processes.hpp"

#include "cli/common/child_ending.hpp"
#include "cli/common/errors.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <chrono>
#include <thread>

namespace headrace::cli::demo {
namespace {

constexpr const char* this_command = "/proc/self/exe";

enum class To { inherited, nowhere, pipe };
enum class Group { ours, own };

struct Started {
  pid_t pid = -1;
  FileDescriptor output;
};

/// fork and exec. The child gets SIGTERM when its parent dies, so that a killed front leaves no process
/// behind.
Result<Started> launch(const char* program, const std::vector<std::string>& arguments, To to, Group group) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int ends[2] = {-1, -1};
  if (to == To::pipe && ::pipe2(ends, O_CLOEXEC) != 0)
    return fail(Code::exhausted, "start {}: {}", arguments.front(), system_text());
  const FileDescriptor write_end(ends[1]);
  Started started;
  started.output = FileDescriptor(ends[0]);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  const FileDescriptor sink(nowhere);
  const pid_t parent = ::getpid();
  started.pid = ::fork();
  if (started.pid < 0) return fail(Code::exhausted, "start {}: {}", arguments.front(), system_text());
  if (started.pid == 0) {
    // Only async-signal-safe calls: the parent has threads.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);
    if (group == Group::own) ::setpgid(0, 0);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (to == To::pipe) ::dup2(ends[1], STDOUT_FILENO);
    if (to == To::nowhere) ::dup2(nowhere, STDOUT_FILENO);
    ::execvp(program, argv.data());
    ::_exit(127);
  }
  return started;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

Result<void> check_ending(const std::vector<std::string>& arguments, int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return fail(Code::backend_failed, "`{}` {}", fmt::join(arguments, " "), ending_text(status));
}

std::string line_from(int fd) {
  std::string line;
  char next = 0;
  while (true) {
    const ssize_t got = ::read(fd, &next, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || next == '\n') return line;
    line += next;
  }
}

}  // namespace

Result<Child> Child::start(std::string name, std::vector<std::string> arguments, Output output) {
  arguments.insert(arguments.begin(), "headrace");
  const To to = output == Output::piped ? To::pipe : To::inherited;
  HEADRACE_CLI_TRY(started, launch(this_command, arguments, to, Group::own));
  Child child;
  child.name_ = std::move(name);
  child.arguments_ = std::move(arguments);
  child.pid_ = started.pid;
  child.output_ = std::move(started.output);
  return child;
}

Child::Child(Child&& other) noexcept
    : name_(std::move(other.name_)),
      arguments_(std::move(other.arguments_)),
      pid_(std::exchange(other.pid_, -1)),
      ending_(std::move(other.ending_)),
      stopped_by_(other.stopped_by_),
      output_(std::move(other.output_)) {}

Child& Child::operator=(Child&& other) noexcept {
  if (this == &other) return *this;
  stop();
  name_ = std::move(other.name_);
  arguments_ = std::move(other.arguments_);
  pid_ = std::exchange(other.pid_, -1);
  ending_ = std::move(other.ending_);
  stopped_by_ = other.stopped_by_;
  output_ = std::move(other.output_);
  return *this;
}

std::string Child::ended() {
  int status = 0;
  while (pid_ >= 0 && ::waitpid(pid_, &status, WNOHANG | WUNTRACED | WCONTINUED) == pid_) {
    stopped_by_ = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) continue;
    pid_ = -1;
    ending_ = ending_text(status);
  }
  return ending_;
}

int Child::stopped_by() {
  (void)ended();
  return stopped_by_;
}

std::string Child::read_line(std::chrono::milliseconds patience, int stop) {
  ::pollfd looks[2] = {{output_.get(), POLLIN, 0}, {stop, POLLIN, 0}};
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    const int ready = left > 0 ? ::poll(looks, 2, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || looks[1].revents != 0) return {};
    return line_from(output_.get());  // the child writes the whole line at once
  }
}

void Child::kill() const {
  if (pid_ >= 0) ::kill(pid_, SIGKILL);
}

void Child::stop() {
  using namespace std::chrono_literals;
  if (pid_ < 0) return;
  ::kill(pid_, SIGTERM);
  for (int i = 0; i < 200 && ended().empty(); ++i) std::this_thread::sleep_for(10ms);
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ending_ = ending_text(wait_for(std::exchange(pid_, -1)));
}

Result<void> run_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> all{"headrace"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  HEADRACE_CLI_TRY(started, launch(this_command, all, To::nowhere, Group::ours));
  return check_ending(all, wait_for(started.pid));
}

Result<std::string> run_program(const std::vector<std::string>& command) {
  HEADRACE_CLI_TRY(started, launch(command.front().c_str(), command, To::pipe, Group::ours));
  std::string line = line_from(started.output.get());
  started.output.reset();
  HEADRACE_CLI_CHECK(check_ending(command, wait_for(started.pid)));
  return line;
}

}  // namespace headrace::cli::demo
