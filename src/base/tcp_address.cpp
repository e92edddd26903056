// SPDX-License-Identifier: Apache-2.0
#include "base/tcp_address.hpp"

#include "base/text.hpp"

#include <arpa/inet.h>
#include <netdb.h>

#include <charconv>
#include <cstring>
#include <memory>

namespace headrace {
namespace {

std::optional<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return port;
}

Error malformed(std::string_view text, std::string_view why) {
  return make_error(Code::invalid_argument,
                    "\"{}\" is not an address: {}; write host:port, [IPv6]:port or :port", text, why);
}

Error resolver_error(const TcpAddress& address, int rc, int saved_errno) {
  if (rc == EAI_SYSTEM) return os_error(Code::backend_failed, saved_errno, "resolve {}", address.text());
  Code code = Code::backend_failed;
  if (rc == EAI_NONAME || rc == EAI_NODATA) code = Code::not_found;
  if (rc == EAI_AGAIN) code = Code::would_block;
  if (rc == EAI_MEMORY) code = Code::exhausted;
  return make_error(code, "resolve {}: {}", address.text(), ::gai_strerror(rc));
}

template <class Call>
Result<SocketAddress> name_of(int socket, const char* what, Call call) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (call(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.length) < 0) {
    return os_error(errno, "read the {} address of socket {}", what, socket);
  }
  return address;
}

}  // namespace

std::uint16_t SocketAddress::port() const noexcept {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

std::string SocketAddress::text() const {
  char host[NI_MAXHOST] = "";
  if (::getnameinfo(get(), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) {
    return fmt::format("<address of family {}>", family());
  }
  return TcpAddress{host, port()}.text();
}

Result<SocketAddress> SocketAddress::local_of(int socket) { return name_of(socket, "local", ::getsockname); }
Result<SocketAddress> SocketAddress::peer_of(int socket) { return name_of(socket, "peer's", ::getpeername); }

bool TcpAddress::is_loopback() const {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

std::string TcpAddress::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

Result<TcpAddress> TcpAddress::parse(std::string_view text, std::optional<std::uint16_t> default_port) {
  const std::string_view input = trim(text);
  if (input.empty()) return malformed(text, "it is empty");
  std::string_view host;
  std::optional<std::string_view> port;
  if (input.front() == '[') {
    const std::size_t bracket = input.find(']');
    if (bracket == std::string_view::npos) return malformed(text, "the bracket is not closed");
    host = input.substr(1, bracket - 1);
    const std::string_view rest = input.substr(bracket + 1);
    if (host.empty()) return malformed(text, "there is nothing in the brackets");
    if (!rest.empty() && rest.front() != ':')
      return malformed(text, "after the bracket comes a colon and the port");
    if (!rest.empty()) port = rest.substr(1);
  } else if (const std::size_t colon = input.rfind(':'); colon == std::string_view::npos) {
    host = input;
  } else if (input.find(':') == colon) {
    host = input.substr(0, colon);
    port = input.substr(colon + 1);
  } else {
    // Several colons: only IPv6 has them, and "::1:80" has two readings. So: the whole address, or brackets.
    in6_addr ignored{};
    if (!default_port || ::inet_pton(AF_INET6, std::string(input).c_str(), &ignored) != 1) {
      return malformed(text, "IPv6 addresses with a port go in brackets");
    }
    host = input;
  }
  if (!port && !default_port) return malformed(text, "the port is missing");
  const std::optional<std::uint16_t> number = port ? parse_port(*port) : default_port;
  if (!number) return malformed(text, fmt::format("\"{}\" is not a port from 0 to 65535", *port));
  return TcpAddress{std::string(host), *number};
}

Result<std::vector<SocketAddress>> TcpAddress::resolve(Use use) const {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_protocol = IPPROTO_TCP;
  // Without AI_ADDRCONFIG: it hides ::1 on hosts that have no other IPv6 address.
  hints.ai_flags = AI_NUMERICSERV | (use == Use::listen ? AI_PASSIVE : 0);
  const std::string service = fmt::format("{}", port);
  addrinfo* raw = nullptr;
  const int rc = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &raw);
  if (rc != 0) return resolver_error(*this, rc, errno);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(raw, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    addresses.push_back(address);
  }
  if (addresses.empty()) {
    return make_error(Code::not_found, "resolve {}: the host has no IPv4 or IPv6 address", text());
  }
  return addresses;
}

}  // namespace headrace
