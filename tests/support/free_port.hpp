// SPDX-License-Identifier: Apache-2.0
// A port for a server that cannot say which one the system chose for it.
#pragma once

#include "base/unique_fd.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>
#include <stdexcept>

namespace headrace::test {

/// A port that is free, and below those that the system gives to connections and to listeners that name none:
/// no other test gets it by chance before it is used.
inline std::uint16_t free_port() {
  constexpr int first = 10'000;
  int given = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> given;
  std::random_device random;
  std::uniform_int_distribution<int> any(first, std::max(given, 2 * first) - 1);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const auto port = static_cast<std::uint16_t>(any(random));
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address{AF_INET, htons(port), {htonl(INADDR_ANY)}, {}};
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return port;
  }
  throw std::runtime_error("no free port");
}

}  // namespace headrace::test
