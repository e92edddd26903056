// SPDX-License-Identifier: Apache-2.0
#include "contract/peer_process.hpp"

#include "base/random.hpp"
#include "support/child_ending.hpp"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <system_error>

extern char** environ;

namespace headrace::contract {
namespace {

struct SocketPair {
  SocketPair() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
      throw std::system_error(errno, std::generic_category(), "socketpair");
    ours.reset(fds[0]);
    theirs.reset(fds[1]);
  }
  UniqueFd ours, theirs;
};

/// While it lives this thread's next child is the first process of a PID namespace of its own. (It may start
/// no thread meanwhile. A thread for this would not do: the peer ends with the one that started it.)
class ChildrenElsewhere {
 public:
  ChildrenElsewhere() : home_(::open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC)) {
    if (!home_ || ::unshare(CLONE_NEWPID) != 0) throw NoPidNamespace();
  }
  ~ChildrenElsewhere() {
    if (::setns(home_.get(), CLONE_NEWPID) != 0)
      std::abort();  // every later child would be in the wrong place
  }
  ChildrenElsewhere(const ChildrenElsewhere&) = delete;
  ChildrenElsewhere& operator=(const ChildrenElsewhere&) = delete;

 private:
  UniqueFd home_;
};

}  // namespace

PeerProcess::PeerProcess(const BackendCase& which, const std::string& name, std::uint64_t incarnation,
                         const std::string& runtime_dir, Numbers numbers)
    : name_(name), vram_(which.vram), incarnation_(incarnation), line_(-1) {
  ::signal(SIGPIPE, SIG_IGN);
  SocketPair sockets;
  std::optional<ChildrenElsewhere> elsewhere;
  if (numbers == Numbers::its_own) elsewhere.emplace();
  std::vector<std::string> words{std::string(HEADRACE_TEST_BIN_DIR) + "/contract_peer", which.plugin(), name,
                                 std::to_string(incarnation), runtime_dir};
  if (which.vram) words.emplace_back("--vram");
  for (const auto& [option, value] : which.settings) words.push_back(fmt::format("{}={}", option, value));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, sockets.theirs.get(), peer_control_fd);
  const int error = ::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  elsewhere.reset();
  if (error != 0) throw std::system_error(error, std::generic_category(), "start " + words[0]);
  fd_ = std::move(sockets.ours);
  line_ = ControlLine(fd_.get());
  sockets.theirs.reset();
  std::string hello;
  if (!line_.read_line(hello) || hello != "ok") {
    const std::string how = ending_text(wait_for_end());
    throw std::runtime_error(fmt::format("contract_peer does not start, it {}: {}", how, hello));
  }
}

PeerProcess::~PeerProcess() { kill(); }

std::string PeerProcess::ask(const std::string& command) {
  std::string answer;
  bool answered = false;
  try {
    line_.write_line(command);
    answered = line_.read_line(answer);
  } catch (const std::runtime_error&) {  // it does not listen: it has ended, which is told below
  }
  if (!answered)
    throw std::runtime_error(fmt::format("the peer {}, asked to {}",
                                         pid_ > 0 ? ending_text(wait_for_end()) : "is gone",
                                         command.substr(0, 100)));
  if (answer.starts_with("ok ")) return answer.substr(3);
  throw std::runtime_error("the peer, asked to " + command.substr(0, 100) + ": " + answer);
}

RegionFacts PeerProcess::region(Memory::Kind kind, std::uint64_t length, std::uint64_t seed) {
  return facts_of(
      ask(fmt::format("region {} {} {}", kind == Memory::Kind::shared ? "shared" : "plain", length, seed)));
}

RegionFacts PeerProcess::host_region(Memory::Kind kind, std::uint64_t length, std::uint64_t seed) {
  RegionFacts facts = facts_of(ask(
      fmt::format("region {} {} {} host", kind == Memory::Kind::shared ? "shared" : "plain", length, seed)));
  facts.kind = HEADRACE_DRAM;
  return facts;
}

RegionFacts PeerProcess::part(const RegionFacts& whole, std::uint64_t offset, std::uint64_t length) {
  return facts_of(ask(fmt::format("part {} {} {}", whole.id, offset, length)));
}

RegionFacts PeerProcess::facts_of(const std::string& answer) const {
  const auto words = words_of(answer);
  RegionFacts facts;
  facts.kind = vram_ ? HEADRACE_VRAM : HEADRACE_DRAM;
  facts.id = static_cast<std::uint32_t>(std::stoul(words.at(0)));
  facts.address = std::stoull(words.at(1));
  facts.length = std::stoull(words.at(2));
  facts.public_data = from_hex(words.at(3));
  return facts;
}

std::vector<std::byte> PeerProcess::bytes_of(const RegionFacts& region) const {
  std::vector<std::byte> bytes(region.length);
  const iovec here{bytes.data(), bytes.size()};
  const iovec there{reinterpret_cast<void*>(region.address), bytes.size()};
  if (::process_vm_readv(pid_, &here, 1, &there, 1, 0) != static_cast<ssize_t>(bytes.size()))
    throw std::runtime_error("the memory of the peer's process cannot be read");
  return bytes;
}

void PeerProcess::signal(int number) {
  killed_ = killed_ || number == SIGKILL;
  if (pid_ <= 0 || ::kill(pid_, number) != 0 || number != SIGSTOP) return;
  siginfo_t stopped{};  // it may run on for a while otherwise
  (void)::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WNOWAIT);
}

void PeerProcess::kill() {
  if (pid_ <= 0) return;
  int status = 0;
  if (!killed_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    pid_ = -1;
    ADD_FAILURE() << "the peer " << ending_text(status) << " before the test ended it";
    return;
  }
  signal(SIGKILL);
  wait_for_end();
}

void PeerProcess::quit() {
  line_.write_line("quit");
  std::string answer;
  if (!line_.read_line(answer)) answer = "nothing";
  const int status = wait_for_end();
  if (answer != "ok" || !is_good_ending(status))
    throw std::runtime_error(
        fmt::format("the peer did not end in good order: it said {} and {}", answer, ending_text(status)));
}

int PeerProcess::wait_for_end() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

std::unique_ptr<PeerProcess> ContractBetweenProcesses::start_peer(const std::string& name,
                                                                  PeerProcess::Numbers numbers) {
  return std::make_unique<PeerProcess>(GetParam(), name, random_u64() >> 1 | 1, world.runtime_dir(), numbers);
}

Link ContractBetweenProcesses::connect(Instance& a, PeerProcess& b) {
  auto link = a.try_connect(b.name(), b.incarnation(), b.connection_info());
  if (!link) throw std::runtime_error("connect: " + link.error().message);
  if (!world.until([&] { return link->ready() || link->lost(); }) || link->lost())
    throw std::runtime_error("no link: " + world.describe());
  b.ask("accepted");
  return std::move(link).value();
}

}  // namespace headrace::contract
