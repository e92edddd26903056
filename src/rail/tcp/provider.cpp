// SPDX-License-Identifier: Apache-2.0
#include "rail/tcp/provider.hpp"

#include "base/random.hpp"
#include "rail/tcp/address.hpp"
#include "rail/tcp/sockets.hpp"
#include "rail/tcp/stream.hpp"
#include "topology/nics.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace headrace::rail::tcp {
namespace {

std::uint64_t speed_of(const std::string& interface_name) {
  for (const Interface& each : read_interfaces(""))
    if (each.name == interface_name) return each.speed_mbit * 1'000'000;
  return 0;
}

}  // namespace

Result<std::unique_ptr<TcpProvider>> TcpProvider::open(const std::string& where, const Options& options,
                                                       SharedSecret secret) {
  HEADRACE_TRY(local, find_local_address(where));
  HEADRACE_TRY(listener, listen_on(local.at));
  HEADRACE_TRY(bound, SocketAddress::local_of(listener.get()));
  local.at = bound;
  HEADRACE_TRY(parts, Parts::open(listener.get()));
  std::unique_ptr<TcpProvider> made(
      new TcpProvider(std::move(parts), std::move(listener), local, options, std::move(secret)));
  made->changeable_info().name = where;
  made->changeable_info().bits_per_second = speed_of(local.interface_name);
  return made;
}

TcpProvider::TcpProvider(Parts parts, UniqueFd listener, const LocalAddress& local, const Options& options,
                         SharedSecret secret)
    : StreamProvider(std::move(parts), listener.get(), options, random_u64()),
      listener_(std::move(listener)),
      local_(local.at),
      interface_name_(local.interface_name),
      secret_(std::move(secret)) {
  set_address(encode(NicAddress{local_, life()}));
}

Health TcpProvider::health() const {
  if (interface_name_.empty()) return {};
  std::string why = why_down(listener_.get(), interface_name_);
  return {why.empty(), std::move(why)};
}

/// The same that agents have. Which NIC is meant, the hello that follows says.
Result<std::optional<wire::Handshake>> TcpProvider::handshake(wire::HelloRole role) const {
  if (secret_.token.empty()) return std::optional<wire::Handshake>();
  wire::Handshake::Config config;
  config.role = role;
  config.mine.purpose = wire::Purpose::fabric;
  config.mine.incarnation = life() | 1;  // never 0
  config.mine.name = "the fabric at " + local_.text();
  config.token = secret_.token;
  config.hmac = secret_.hmac;
  HEADRACE_TRY(begun, wire::Handshake::begin(std::move(config)));
  return std::optional(std::move(begun));
}

Result<stream::NewStream> TcpProvider::reach(std::string_view address) {
  HEADRACE_TRY(remote, read_address(address));
  if (remote.at.family() != local_.family())
    return make_error(Code::not_supported, "{} and {} are addresses of different kinds, IPv4 and IPv6",
                      local_.text(), remote.at.text());
  HEADRACE_TRY(proof, handshake(wire::HelloRole::connecting));
  HEADRACE_TRY(socket, begin_connect(local_, remote.at));
  auto stream =
      std::make_unique<TcpStream>(std::move(socket), TcpStream::State::connecting, std::move(proof));
  return stream::NewStream{std::move(stream), remote.at.text(), remote.life};
}

Result<stream::NewStream> TcpProvider::accept() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) {
    const bool none = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
    return os_error(none ? Code::would_block : Code::exhausted, errno, "accept a connection");
  }
  tune(socket.get());
  const auto from = SocketAddress::peer_of(socket.get());
  HEADRACE_TRY(proof, handshake(wire::HelloRole::accepting));
  auto stream = std::make_unique<TcpStream>(std::move(socket), TcpStream::State::connected, std::move(proof));
  return stream::NewStream{std::move(stream), from ? from->text() : "a peer", 0};
}

}  // namespace headrace::rail::tcp
