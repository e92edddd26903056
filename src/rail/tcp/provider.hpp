// SPDX-License-Identifier: Apache-2.0
// The provider of sockets: a local address is a NIC. docs/decisions/0016, section 5.
#pragma once

#include "base/tcp_address.hpp"
#include "base/unique_fd.hpp"
#include "rail/stream/provider.hpp"
#include "rail/tcp/address.hpp"
#include "wire/handshake.hpp"

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::rail::tcp {

using stream::Options;

/// What both sides of each connection prove that they know.
struct SharedSecret {
  std::string token;  ///< empty: none. Any program that reaches the port can say hello
  wire::Hmac hmac;    ///< with a token
};

/// Bytes are not encrypted.
class TcpProvider final : public stream::StreamProvider {
 public:
  /// Listens. `where`: an IPv4 or IPv6 address of this host, or the name of an interface.
  ///   errors  not_found (neither), those of the system
  static Result<std::unique_ptr<TcpProvider>> open(const std::string& where, const Options& options = {},
                                                   SharedSecret secret = {});

  /// Of its interface.
  [[nodiscard]] Health health() const override;

 private:
  TcpProvider(Parts parts, UniqueFd listener, const LocalAddress& local, const Options& options,
              SharedSecret secret);
  Result<stream::NewStream> reach(std::string_view address) override;
  Result<stream::NewStream> accept() override;
  [[nodiscard]] Result<std::optional<wire::Handshake>> handshake(wire::HelloRole role) const;

  const UniqueFd listener_;
  const SocketAddress local_;         // with its port
  const std::string interface_name_;  // empty: no interface has the address by itself, as 127.0.0.2
  const SharedSecret secret_;
};

}  // namespace headrace::rail::tcp
