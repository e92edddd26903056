// SPDX-License-Identifier: Apache-2.0
// Where to connect to or listen on over IP: read from text, resolved to socket addresses, written back.
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
  /// "192.0.2.1:80" or "[2001:db8::1]:80", with the scope where there is one: "[fe80::1%eth0]:80".
  [[nodiscard]] std::string text() const;

  /// The address that a socket is bound to, or its peer's.
  [[nodiscard]] static Result<SocketAddress> local_of(int socket);
  [[nodiscard]] static Result<SocketAddress> peer_of(int socket);
};

/// A host (name or address, empty for "any of mine") and a port.
struct TcpAddress {
  std::string host;
  std::uint16_t port = 0;

  /// Reads "host:port", "[v6]:port", ":port"; with a default port also "host", "v6" and "[v6]".
  ///   errors   invalid_argument (says what was expected)
  [[nodiscard]] static Result<TcpAddress> parse(std::string_view text,
                                                std::optional<std::uint16_t> default_port = std::nullopt);

  /// What parse reads: IPv6 in brackets.
  [[nodiscard]] std::string text() const;

  enum class Use { connect, listen };
  /// Every socket address of the host, in the order in which the system advises to try them. An empty host
  /// means the loopback addresses for connecting, the wildcard ones for listening.
  ///   threads  asks the system's resolver and may block for as long as that takes: not on a progress thread
  ///   errors   not_found (no such host), would_block (the resolver is busy), backend_failed
  [[nodiscard]] Result<std::vector<SocketAddress>> resolve(Use use) const;

  friend bool operator==(const TcpAddress&, const TcpAddress&) = default;
};

}  // namespace headrace
