// SPDX-License-Identifier: Apache-2.0
// A server that accepts connections and never answers.
#pragma once

#include "base/unique_fd.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace::test {

class SilentPort {
 public:
  SilentPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
    socklen_t length = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_.get(), generic, length) != 0 || ::listen(socket_.get(), 64) != 0 ||
        ::getsockname(socket_.get(), generic, &length) != 0)
      throw std::runtime_error("cannot listen on loopback");
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  [[nodiscard]] const std::string& address() const { return address_; }

  /// Waits until so many connections have come in all, and keeps them open. False after 30 s.
  bool accepts(std::size_t count) {
    while (clients_.size() < count) {
      pollfd waiting{socket_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 30'000) != 1) return false;
      clients_.emplace_back(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    }
    return true;
  }

 private:
  UniqueFd socket_;
  std::string address_;
  std::vector<UniqueFd> clients_;
};

}  // namespace headrace::test
