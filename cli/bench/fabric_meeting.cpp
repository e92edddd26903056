// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/fabric_meeting.hpp"

#include <headrace/version.hpp>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>

namespace headrace::cli {
namespace {

constexpr int connect_ms = 10'000;
constexpr const char* program = "headrace bench fabric";

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Error no_address(const std::string& text) {
  return fail(Code::invalid_argument,
              "\"{}\" is not an address: write HOST:PORT or [IPv6]:PORT, as the server prints it", text);
}

Result<Addresses> resolve(const std::string& text, int flags) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) return no_address(text);
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string::npos)
    return no_address(text);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), text.c_str() + colon + 1, &hints, &found);
  if (code == EAI_SERVICE || (code == EAI_NONAME && host.empty())) return no_address(text);
  if (code != 0) return fail(Code::not_found, "resolve {}: {}", text, ::gai_strerror(code));
  return Addresses(found, &::freeaddrinfo);
}

/// "192.0.2.1" and "4711".
std::array<std::string, 2> names_of(const sockaddr_storage& address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host.data(), host.size(), port.data(),
                port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  return {host.data(), port.data()};
}

/// A machine that goes without a word is noticed after some seconds, also while nothing is sent.
void watch_the_peer(int socket) {
  constexpr int on = 1, idle_s = 10, interval_s = 5, probes = 4;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// The error of the system, or 0.
int connect_within(int socket, const addrinfo& to) {
  if (::connect(socket, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{socket, POLLOUT, 0};
  if (::poll(&wait, 1, connect_ms) == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

}  // namespace

Result<FabricMeeting> FabricMeeting::listen(const std::string& address) {
  HEADRACE_CLI_TRY(found, resolve(address, AI_PASSIVE));
  FileDescriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  constexpr int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!socket || ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), 8) != 0)
    return fail(Code::exhausted, "listen at {}: {}; --listen takes another address", address, system_text());
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  const auto [host, port] = names_of(bound, length);
  return FabricMeeting(std::move(socket), found->ai_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                                                       : fmt::format("{}:{}", host, port));
}

Result<FabricMeeting::Client> FabricMeeting::accept() const {
  for (;;) {
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    FileDescriptor socket(
        ::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC));
    if (socket) {
      watch_the_peer(socket.get());
      return Client{std::move(socket), names_of(from, length)[0]};
    }
    if (errno != EINTR && errno != ECONNABORTED)
      return fail(Code::exhausted, "wait for a client at {}: {}", address_, system_text());
  }
}

Result<FileDescriptor> meet_fabric_server(const std::string& address) {
  HEADRACE_CLI_TRY(found, resolve(address, 0));
  int error = 0;
  for (const addrinfo* to = found.get(); to != nullptr; to = to->ai_next) {
    FileDescriptor socket(::socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = socket ? connect_within(socket.get(), *to) : errno;
    if (error != 0) continue;
    ::fcntl(socket.get(), F_SETFL, 0);  // it blocks from now on
    watch_the_peer(socket.get());
    return socket;
  }
  return fail(error == ETIMEDOUT ? Code::timed_out : Code::peer_lost,
              "connect to {}: {}; start `headrace bench fabric` without an address there first, and type the "
              "address that it prints",
              address, system_text(error));
}

Result<Json> greet_fabric_side(int socket, Json told, const std::string& other) {
  told["program"] = program;
  told["version"] = HEADRACE_VERSION;
  HEADRACE_CLI_CHECK(send_frame(socket, told));
  auto theirs = receive_frame(socket);
  if (!theirs && theirs.code() == Code::timed_out)
    return fail(Code::timed_out, "{} did not greet within 60 s: it measures with another client, or is {}",
                other, "another program");
  if (!theirs && theirs.code() == Code::peer_lost)
    return fail(Code::peer_lost, "{} has closed the connection before it has greeted", other);
  if (!theirs || theirs->value("program", "") != program)
    return fail(Code::corrupt, "{} is not `{}`: type the address that this prints", other, program);
  if (const auto version = theirs->value("version", ""); version != HEADRACE_VERSION)
    return fail(Code::not_supported, "{} is of version {} and this is {}: install the same on both sides",
                other, version, HEADRACE_VERSION);
  return theirs;
}

}  // namespace headrace::cli
