// SPDX-License-Identifier: Apache-2.0
// Where a NIC of the tcp provider is found: "tcp:192.0.2.1:4711/0123456789abcdef". The last part is its life,
// drawn when it opens: a NIC that is opened again at the same port is another one.
#pragma once

#include "base/tcp_address.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::rail::tcp {

struct NicAddress {
  SocketAddress at;
  std::uint64_t life = 0;
};
[[nodiscard]] std::string encode(const NicAddress& address);
/// Bytes from outside. Asks no resolver.
///   errors  corrupt, not_supported (the address of another kind of NIC)
[[nodiscard]] Result<NicAddress> read_address(std::string_view bytes);

/// A local address to listen on, and the interface that has it.
struct LocalAddress {
  SocketAddress at;            ///< port 0
  std::string interface_name;  ///< empty: not found, as for 127.0.0.2
};
/// `where`: an IPv4 or IPv6 address of this host, or an interface, whose first address is taken, IPv4 before
/// IPv6.
///   errors  not_found
[[nodiscard]] Result<LocalAddress> find_local_address(const std::string& where);

}  // namespace headrace::rail::tcp
