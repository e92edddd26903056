// SPDX-License-Identifier: Apache-2.0
// Sockets as the options want them.
#pragma once

#include "backends/tcp/settings.hpp"
#include "base/tcp_address.hpp"
#include "base/unique_fd.hpp"

namespace headrace::tcp {

/// A non-blocking socket for connecting to `address`, tuned.
[[nodiscard]] Result<UniqueFd> open_socket(const SocketAddress& address, const Settings& settings);
/// A non-blocking listener whose sockets will be tuned alike. The wildcard IPv6 address takes IPv4 as well.
[[nodiscard]] Result<UniqueFd> open_listener(const SocketAddress& address, const Settings& settings);
/// What is not inherited from a listener.
void tune(int fd, const Settings& settings);
/// Whether the other side has closed or reset it. Bytes that came before may wait to be read.
[[nodiscard]] bool closed_by_peer(int fd);
/// Closes it so that the other side hears of it at once: what was not sent is thrown away, and a reset goes
/// out, which overtakes what the other side has not read.
void abort_connection(UniqueFd fd);

}  // namespace headrace::tcp
