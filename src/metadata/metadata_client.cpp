// SPDX-License-Identifier: Apache-2.0
#include "metadata/metadata_socket.hpp"

#include "base/tcp_address.hpp"
#include "base/unique_fd.hpp"
#include "vendor/openssl/openssl.hpp"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <climits>
#include <span>

namespace headrace::metadata {
namespace {

/// Waits for `events`; false if the deadline has passed.
Result<bool> wait_for(int fd, short events, const Patience& patience) {
  const Deadline deadline = patience.deadline;
  for (;;) {
    pollfd entries[] = {{fd, events, 0}, {patience.canceled, POLLIN, 0}};  // poll ignores a descriptor of -1
    const std::uint64_t left_ms =
        deadline.is_never() ? INT_MAX : (deadline.remaining_ns() + 999'999) / 1'000'000;
    const int ready = ::poll(entries, 2, static_cast<int>(std::min<std::uint64_t>(left_ms, INT_MAX)));
    if (entries[1].revents != 0) return make_error(Code::canceled, "the agent was closed meanwhile");
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return os_error(errno, "wait for descriptor {}", fd);
    if (deadline.expired()) return false;
  }
}

Result<UniqueFd> connect_one(const SocketAddress& address, const Patience& patience) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return os_error(errno, "make a socket for {}", address.text());
  int error = ::connect(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    HEADRACE_TRY(ready, wait_for(fd.get(), POLLOUT, patience));
    if (!ready)
      return make_error(Code::timed_out,
                        "connect to {}: no answer in time: check that an agent listens there and that no "
                        "firewall blocks it",
                        address.text());
    socklen_t size = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) < 0) error = errno;
  }
  if (error == ECONNREFUSED)
    return make_error(
        Code::peer_lost,
        "connect to {}: connection refused: nothing listens there: the other side has not started (an agent: "
        "with `listen`), has ended, or has another address",
        address.text());
  if (error != 0) return os_error(Code::peer_lost, error, "connect to {}", address.text());
  const int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

/// Connects to the first address of the host that answers. Each address gets a share of the time, so that one
/// that drops packets does not use up the time of the others.
Result<UniqueFd> connect_to(const std::string& text, const Patience& patience) {
  const Deadline deadline = patience.deadline;
  HEADRACE_TRY(address, TcpAddress::parse(text));
  HEADRACE_TRY(candidates, address.resolve(TcpAddress::Use::connect));
  Error last = make_error(Code::timed_out, "connect to {}: the deadline has passed", text);
  for (std::size_t i = 0; i < candidates.size() && !deadline.expired(); ++i) {
    Deadline share = deadline;
    if (!deadline.is_never()) {
      const std::uint64_t part = deadline.remaining_ns() / (candidates.size() - i);
      share = Deadline::after(
          std::chrono::nanoseconds(static_cast<std::int64_t>(std::min<std::uint64_t>(part, INT64_MAX))));
    }
    auto connected = connect_one(candidates[i], {share, patience.canceled});
    if (connected || connected.code() == Code::canceled) return connected;
    last = std::move(connected).error();
  }
  return last;
}

/// Reads what has arrived. False: the server has closed.
Result<bool> receive(int fd, ClientSession& session, std::span<char> buffer) {
  const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
  if (got > 0) {
    session.feed({buffer.data(), static_cast<std::size_t>(got)});
    return true;
  }
  if (got == 0) return false;
  if (errno == EAGAIN || errno == EINTR) return true;
  return os_error(Code::peer_lost, errno, "read from the agent");
}

Result<void> send_some(int fd, ClientSession& session) {
  const std::string_view bytes = session.to_send();
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) {
    session.sent(static_cast<std::size_t>(sent));
  } else if (errno != EAGAIN && errno != EINTR && errno != EPIPE && errno != ECONNRESET) {
    return os_error(Code::peer_lost, errno, "write to the agent");
  }
  // A broken pipe is not an error yet: the server may have refused, and its reason may still be readable.
  return {};
}

Result<std::string> run(int fd, ClientSession& session, const Patience& patience) {
  std::vector<char> buffer(std::size_t{256} << 10);
  bool writable = true;
  while (session.state() == ClientSession::State::running) {
    const bool sending = writable && !session.to_send().empty();
    HEADRACE_TRY(ready, wait_for(fd, static_cast<short>(sending ? POLLIN | POLLOUT : POLLIN), patience));
    if (!ready) return make_error(Code::timed_out, "the deadline passed while {}", session.doing());
    HEADRACE_TRY(open, receive(fd, session, buffer));
    if (session.state() != ClientSession::State::running) break;
    if (!open)
      return make_error(Code::peer_lost, "the agent closed the connection while this side was {}",
                        session.doing());
    if (sending) {
      const std::size_t before = session.to_send().size();
      HEADRACE_TRY_VOID(send_some(fd, session));
      // Nothing was sent: wait for the server's answer instead of spinning on a broken pipe.
      if (session.to_send().size() == before) {
        pollfd entry{fd, POLLOUT, 0};
        ::poll(&entry, 1, 0);
        writable = (entry.revents & (POLLERR | POLLHUP)) == 0;
      }
    }
  }
  if (session.state() == ClientSession::State::failed) return session.error();
  return std::move(session).take_answer();
}

Result<std::string> exchange(const std::string& address, const SocketIdentity& me, std::string request,
                             const Patience& patience, wire::Hello* server = nullptr) {
  wire::Handshake::Config config;
  config.role = wire::HelloRole::connecting;
  config.mine.name = me.name;
  config.mine.incarnation = me.incarnation;
  config.mine.purpose = wire::Purpose::metadata;
  config.token = me.token;
  config.hmac = me.hmac;
  if (!config.token.empty() && !config.hmac) {
    HEADRACE_TRY(hmac, load_hmac());
    config.hmac = std::move(hmac);
  }
  HEADRACE_TRY(handshake, wire::Handshake::begin(std::move(config)));
  HEADRACE_TRY(fd, connect_to(address, patience));
  ClientSession session(std::move(handshake), std::move(request));
  auto answer = run(fd.get(), session, patience);
  if (!answer) {
    Error error = std::move(answer).error();
    // Nothing has shown yet that it is one.
    if (error.code == Code::peer_lost && session.server().name.empty())
      error.message += ": is this the metadata socket of an agent of Headrace?";
    return std::move(error).within("ask the agent at " + address);
  }
  if (server != nullptr) *server = session.server();
  return answer;
}

}  // namespace

Result<wire::Hmac> load_hmac() {
  HEADRACE_TRY(openssl, OpenSsl::load());
  return wire::Hmac([openssl](std::string_view key, std::string_view message) -> Result<wire::Proof> {
    HEADRACE_TRY(digest,
                 openssl.hmac_sha256(std::as_bytes(std::span(key)), std::as_bytes(std::span(message))));
    wire::Proof proof{};
    std::ranges::transform(digest, proof.begin(),
                           [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
    return proof;
  });
}

Result<std::string> fetch_from(const std::string& address, const SocketIdentity& me, const std::string& label,
                               std::uint64_t since, const Patience& patience, wire::Hello* server) {
  HEADRACE_TRY(request, wire::encode(wire::MetadataRequest(wire::FetchRequest{label, since})));
  HEADRACE_TRY(answer, exchange(address, me, std::move(request), patience, server));
  auto metadata = wire::decode_fetch_answer(answer);
  if (!metadata) return std::move(metadata).error().within("fetch metadata from " + address);
  return std::string(*metadata);
}

Result<void> send_to(const std::string& address, const SocketIdentity& me, std::string_view metadata,
                     const Patience& patience) {
  HEADRACE_TRY(request, wire::encode(wire::MetadataRequest(wire::SendRequest{metadata})));
  HEADRACE_TRY(answer, exchange(address, me, std::move(request), patience));
  auto taken = wire::decode_send_answer(answer);
  if (!taken) return std::move(taken).error().within("send metadata to " + address);
  return {};
}

}  // namespace headrace::metadata
