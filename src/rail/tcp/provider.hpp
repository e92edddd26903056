// SPDX-License-Identifier: Apache-2.0
// The provider of sockets: a local address is a NIC. docs/decisions/0016, section 5.
#pragma once

#include "base/tcp_address.hpp"
#include "base/unique_fd.hpp"
#include "rail/stream/provider.hpp"

#include <memory>
#include <string>
#include <string_view>

namespace headrace::rail::tcp {

using stream::Options;

/// Peers are not authenticated: any program that reaches the port can say hello. Bytes are not encrypted.
class TcpProvider final : public stream::StreamProvider {
 public:
  /// Listens. `where`: an IPv4 or IPv6 address of this host, or the name of an interface.
  ///   errors  not_found (neither), those of the system
  static Result<std::unique_ptr<TcpProvider>> open(const std::string& where, const Options& options = {});

 private:
  TcpProvider(Parts parts, UniqueFd listener, const SocketAddress& local, const Options& options);
  Result<stream::NewStream> reach(std::string_view address) override;
  Result<stream::NewStream> accept() override;

  const UniqueFd listener_;
  const SocketAddress local_;
};

}  // namespace headrace::rail::tcp
