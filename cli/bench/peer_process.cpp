// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/peer_process.hpp"

#include "cli/common/child_ending.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <thread>

namespace headrace::cli {
namespace {

constexpr std::uint32_t frame_limit = 64U << 20;
constexpr int silence_ms = 60'000;

Result<void> receive_exactly(int fd, void* to, std::size_t length) {
  for (std::size_t have = 0; have < length;) {
    pollfd wait{fd, POLLIN, 0};
    const int ready = ::poll(&wait, 1, silence_ms);
    if (ready < 0 && errno != EINTR) return fail(Code::internal, "poll: {}", system_text());
    if (ready == 0)
      return fail(Code::timed_out, "the other process of the benchmark did not answer within 60 s");
    if (ready < 0) continue;
    const ssize_t n = ::recv(fd, static_cast<char*>(to) + have, length - have, 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
      return fail(Code::peer_lost, "the other process of the benchmark has closed its socket");
    if (n < 0 && errno != EINTR) return fail(Code::internal, "receive: {}", system_text());
    if (n > 0) have += static_cast<std::size_t>(n);
  }
  return {};
}

Result<void> send_exactly(int fd, const void* from, std::size_t length) {
  for (std::size_t sent = 0; sent < length;) {
    const ssize_t n = ::send(fd, static_cast<const char*>(from) + sent, length - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(Code::peer_lost, "the other process of the benchmark has closed its socket");
    sent += static_cast<std::size_t>(n);
  }
  return {};
}

}  // namespace

Result<void> send_frame(int fd, const Json& message) {
  const std::vector<std::uint8_t> bytes = Json::to_msgpack(message);
  const auto length = static_cast<std::uint32_t>(bytes.size());
  HEADRACE_CLI_CHECK(send_exactly(fd, &length, sizeof length));
  return send_exactly(fd, bytes.data(), bytes.size());
}

Result<Json> receive_frame(int fd) {
  std::uint32_t length = 0;
  HEADRACE_CLI_CHECK(receive_exactly(fd, &length, sizeof length));
  if (length > frame_limit)
    return fail(Code::corrupt, "a message of {} bytes from the other process of the benchmark", length);
  std::vector<std::uint8_t> bytes(length);
  HEADRACE_CLI_CHECK(receive_exactly(fd, bytes.data(), bytes.size()));
  Json message = Json::from_msgpack(bytes, true, false);
  if (!message.is_object())
    return fail(Code::corrupt, "a message from the other process of the benchmark cannot be read");
  return message;
}

Result<PeerProcess> PeerProcess::start() {
  PeerProcess peer;
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0)
    return fail(Code::exhausted, "making a socket pair for the benchmark's other process: {}", system_text());
  peer.control_ = FileDescriptor(pair[0]);
  const FileDescriptor theirs(pair[1]);
  peer.ping_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
  peer.pong_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC));
  if (!peer.ping_ || !peer.pong_) return fail(Code::exhausted, "making an eventfd: {}", system_text());

  // The child keeps these three open under the same numbers.
  const std::array inherited{theirs.get(), peer.ping_.get(), peer.pong_.get()};
  const std::array names{std::to_string(inherited[0]), std::to_string(inherited[1]),
                         std::to_string(inherited[2])};
  std::array<const char*, 10> arguments{"headrace",       "bench",  "peer",           "--control",
                                        names[0].c_str(), "--ping", names[1].c_str(), "--pong",
                                        names[2].c_str(), nullptr};
  const pid_t parent = ::getpid();
  const pid_t id = ::fork();
  if (id < 0) return fail(Code::exhausted, "starting the benchmark's other process: {}", system_text());
  if (id == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    for (const int fd : inherited) ::fcntl(fd, F_SETFD, 0);
    ::execv("/proc/self/exe", const_cast<char**>(arguments.data()));
    ::_exit(127);
  }
  peer.child_.id = id;
  return peer;
}

PeerProcess::~PeerProcess() {
  control_.reset();
  if (child_.id < 0) return;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  int status = 0;
  while (::waitpid(child_.id, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > give_up) {
      ::kill(child_.id, SIGKILL);
      ::waitpid(child_.id, nullptr, 0);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // What it was asked for has been answered by then; a crash at its end is a defect all the same.
  if (WIFSIGNALED(status))
    std::fprintf(stderr, "headrace: the other process of the benchmark %s\n", ending_text(status).c_str());
}

Error PeerProcess::gone(Error error) {
  int status = 0;
  // waitpid blocks: the socket closes a little before the process ends.
  if (error.code == Code::peer_lost && child_.id >= 0 && ::waitpid(child_.id, &status, 0) == child_.id) {
    child_.id = -1;
    error.message += fmt::format(": it {}", ending_text(status));
  }
  return error;
}

Result<void> PeerProcess::send(const Json& message) {
  if (auto sent = send_frame(control_.get(), message); !sent) return gone(std::move(sent).error());
  return {};
}

Result<Json> PeerProcess::receive() {
  auto answer = receive_frame(control_.get());
  if (!answer) return gone(std::move(answer).error());
  if (const auto error = answer->find("error"); error != answer->end()) {
    return Error{static_cast<Code>(answer->value("code", 0)),
                 "the other process of the benchmark: " + error->get<std::string>()};
  }
  return answer;
}

Result<Json> PeerProcess::call(const Json& message) {
  HEADRACE_CLI_CHECK(send(message));
  return receive();
}

}  // namespace headrace::cli
