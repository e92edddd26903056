// SPDX-License-Identifier: Apache-2.0
// Sockets as this provider wants them: non-blocking, without delay, with keep-alive.
#pragma once

#include "base/tcp_address.hpp"
#include "base/unique_fd.hpp"

#include <string>

namespace headrace::rail::tcp {

/// Why the interface carries nothing now, seen from the namespace of the socket; empty: it does.
[[nodiscard]] std::string why_down(int socket, const std::string& interface_name);
/// Listens on the address.
[[nodiscard]] Result<UniqueFd> listen_on(const SocketAddress& at);
/// Begins to connect from the address of `local`. Its port is not used.
[[nodiscard]] Result<UniqueFd> begin_connect(const SocketAddress& local, const SocketAddress& remote);
/// What an accepted socket does not inherit.
void tune(int socket);
/// What became of `begin_connect`.
[[nodiscard]] Result<void> connect_result(int socket);
/// Closes it with a reset: what was not sent is thrown away, and the peer hears of it at once.
void reset(UniqueFd& socket);

}  // namespace headrace::rail::tcp
