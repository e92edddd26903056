// SPDX-License-Identifier: Apache-2.0
// What an instance gives out so that peers can reach it: its host, and addresses in the order in which to try
// them.
#pragma once

#include "base/tcp_address.hpp"

#include <headrace/result.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::tcp {

struct ConnectionInfo {
  static constexpr std::size_t max_addresses = 64;

  std::uint64_t host = 0;             ///< this_host() of the giver; 0: unknown
  std::vector<TcpAddress> addresses;  ///< host names or addresses

  /// One line: "headrace-tcp 1 <host, hex> <address> <address> ...".
  [[nodiscard]] std::string text() const;
  ///   errors  corrupt (says what is wrong), not_supported (another version)
  [[nodiscard]] static Result<ConnectionInfo> parse(std::string_view text);

  /// The addresses as one on `host` should try them: loopback first for a neighbour, and not at all for
  /// others, who would meet a stranger there.
  [[nodiscard]] std::vector<TcpAddress> for_host(std::uint64_t host) const;
};

/// Alike for processes that booted together: not proof that they share a network, but a reason to try. 0:
/// unknown.
[[nodiscard]] std::uint64_t this_host();

/// The addresses of all interfaces that are up, others before loopback ones; link-local ones mean nothing
/// elsewhere and are left out. `family` AF_UNSPEC, AF_INET or AF_INET6.
[[nodiscard]] std::vector<SocketAddress> interface_addresses(int family);

/// Reads a numeric address without asking a resolver.
[[nodiscard]] bool is_numeric(const TcpAddress& address);

}  // namespace headrace::tcp
