// SPDX-License-Identifier: Apache-2.0
// IP addresses to connect to or listen on: parsed from text, resolved to socket addresses, written as text.
#pragma once

#include "base/errors.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// An IPv4 or IPv6 socket address as the system calls take it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// "192.0.2.1:80" or "[2001:db8::1]:80"; with a scope "[fe80::1%eth0]:80".
  [[nodiscard]] std::string text() const;

  /// The address to which a socket is bound, and the address of its peer.
  [[nodiscard]] static Result<SocketAddress> local_of(int socket);
  [[nodiscard]] static Result<SocketAddress> peer_of(int socket);
};

/// A host (name or address; empty: any of this host's) and a port.
struct TcpAddress {
  std::string host;
  std::uint16_t port = 0;

  /// Parses "host:port", "[v6]:port", ":port"; with a default port also "host", "v6" and "[v6]".
  ///   errors   invalid_argument (says what was expected)
  [[nodiscard]] static Result<TcpAddress> parse(std::string_view text,
                                                std::optional<std::uint16_t> default_port = std::nullopt);

  /// The form that parse accepts: IPv6 in brackets.
  [[nodiscard]] std::string text() const;

  /// Whether it is this host's own address, or "localhost": nobody else reaches it.
  [[nodiscard]] bool is_loopback() const;

  enum class Use { connect, listen };
  /// All socket addresses of the host, in the order in which the system advises to try them. An empty host
  /// means the loopback addresses for connecting, and the wildcard addresses for listening.
  ///   threads  asks the system's resolver and may block on it: not for a progress thread
  ///   errors   not_found (no such host), would_block (the resolver is busy), backend_failed
  [[nodiscard]] Result<std::vector<SocketAddress>> resolve(Use use) const;

  friend bool operator==(const TcpAddress&, const TcpAddress&) = default;
};

}  // namespace headrace
