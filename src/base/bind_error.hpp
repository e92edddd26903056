// SPDX-License-Identifier: Apache-2.0
// Why a socket could not be bound to an address, and what to do.
#pragma once

#include "base/errors.hpp"
#include "base/tcp_address.hpp"

namespace headrace {

/// "bind to 127.0.0.1:80: address already in use (errno 98); another process has this port: ...". The code is
/// that of the errno.
[[nodiscard]] Error bind_error(int error_number, const SocketAddress& address);

}  // namespace headrace
