// SPDX-License-Identifier: Apache-2.0
#include "base/bind_error.hpp"

#include <cerrno>
#include <string_view>

namespace headrace {
namespace {

std::string_view bind_advice(int error_number) {
  switch (error_number) {
    case EADDRINUSE:
      return "; another process has this port: give another one, or 0 for a free one";
    case EADDRNOTAVAIL:
      return "; no network interface of this machine has this address: give one that it has, or 0.0.0.0 or "
             "[::] "
             "for all";
    case EACCES:
      return "; ports below 1024 are for root: give another one, or 0 for a free one";
    default:
      return "";
  }
}

}  // namespace

Error bind_error(int error_number, const SocketAddress& address) {
  Error error = os_error(error_number, "bind to {}", address.text());
  error.message += bind_advice(error_number);
  return error;
}

}  // namespace headrace
