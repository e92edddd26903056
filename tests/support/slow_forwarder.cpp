// SPDX-License-Identifier: Apache-2.0
#include "support/slow_forwarder.hpp"

#include "base/clock.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace headrace::test {
namespace {

constexpr std::size_t most_bytes_under_way = 1 << 20;

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOTCONN; }

}  // namespace

std::unique_ptr<SlowForwarder> SlowForwarder::open(const SocketAddress& target, const Slowness& slowness,
                                                   std::uint64_t seed) {
  SocketAddress at = target;
  reinterpret_cast<sockaddr_in&>(at.storage).sin_port = 0;
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener || ::bind(listener.get(), at.get(), at.length) < 0 || ::listen(listener.get(), 16) < 0)
    return nullptr;
  const auto bound = SocketAddress::local_of(listener.get());
  if (!bound) return nullptr;
  return std::unique_ptr<SlowForwarder>(
      new SlowForwarder(std::move(listener), *bound, target, slowness, seed));
}

void SlowForwarder::accept_one() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) return;
  UniqueFd onward(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!onward || (::connect(onward.get(), target_.get(), target_.length) < 0 && errno != EINPROGRESS)) return;
  Connection& made = connections_.emplace_back();
  made.ends[0] = std::move(socket);
  made.ends[1] = std::move(onward);
}

void SlowForwarder::cut_into_pieces(Direction& way, const std::string& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length =
        std::min<std::size_t>(1 + random_() % slowness_.most_piece_bytes, bytes.size() - at);
    std::uint64_t due_ns = now_ns() + random_() % static_cast<std::uint64_t>(slowness_.longest_delay.count());
    if (random_() % 100 < slowness_.stalled_percent)
      due_ns += static_cast<std::uint64_t>(slowness_.stall.count());
    way.last_due_ns = std::max(way.last_due_ns, due_ns);  // it is a stream
    way.pieces.push_back({way.last_due_ns, bytes.substr(at, length)});
    at += length;
  }
  way.bytes += bytes.size();
}

void SlowForwarder::take(Connection& connection, int from) {
  Direction& way = connection.ways[from];
  if (way.bytes > most_bytes_under_way) return;
  std::array<char, 64 * 1024> room;
  const ssize_t got = ::recv(connection.ends[from].get(), room.data(), room.size(), 0);
  if (got > 0) cut_into_pieces(way, std::string(room.data(), static_cast<std::size_t>(got)));
  if (got == 0 || (got < 0 && !would_wait())) connection.over = true;
}

void SlowForwarder::give(Connection& connection, int from) {
  Direction& way = connection.ways[from];
  for (const std::uint64_t now = now_ns(); !way.pieces.empty() && way.pieces.front().due_ns <= now;) {
    std::string& bytes = way.pieces.front().bytes;
    const ssize_t sent = ::send(connection.ends[1 - from].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && !would_wait()) connection.over = true;
    if (sent <= 0) return;
    way.bytes -= static_cast<std::size_t>(sent);
    bytes.erase(0, static_cast<std::size_t>(sent));
    if (bytes.empty()) way.pieces.pop_front();
  }
}

void SlowForwarder::pass() {
  accept_one();
  for (Connection& connection : connections_)
    for (int from = 0; from < 2; ++from) {
      take(connection, from);
      give(connection, from);
    }
  connections_.remove_if([](const Connection& each) { return each.over; });
}

std::size_t SlowForwarder::cut() {
  const std::size_t count = connections_.size();
  connections_.clear();
  return count;
}

}  // namespace headrace::test
