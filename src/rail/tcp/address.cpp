// SPDX-License-Identifier: Apache-2.0
#include "rail/tcp/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

namespace headrace::rail::tcp {
namespace {

constexpr std::string_view address_scheme = "tcp:";
constexpr std::size_t most_address_bytes = 128;

std::optional<SocketAddress> numeric(const std::string& host, std::uint16_t port) {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    address.length = sizeof v4;
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    address.length = sizeof v6;
  } else {
    return std::nullopt;
  }
  return address;
}

/// Without its port.
bool same_host(const SocketAddress& a, const sockaddr* b) {
  if (b == nullptr || b->sa_family != a.family()) return false;
  if (a.family() == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(a.storage).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a.storage).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

/// An address that peers elsewhere can use.
bool is_usable(const sockaddr* address, int family) {
  if (address == nullptr || address->sa_family != family) return false;
  return family == AF_INET ||
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

class InterfaceAddresses {
 public:
  InterfaceAddresses() {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) == 0) list_.reset(list);
  }
  template <class Holds>
  [[nodiscard]] const ifaddrs* find(const Holds& holds) const {
    for (const ifaddrs* at = list_.get(); at != nullptr; at = at->ifa_next)
      if (holds(*at)) return at;
    return nullptr;
  }

 private:
  std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list_{nullptr, &::freeifaddrs};
};

LocalAddress of_interface(const ifaddrs& found) {
  LocalAddress local;
  local.at.length = found.ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&local.at.storage, found.ifa_addr, local.at.length);
  local.interface_name = found.ifa_name;
  return local;
}

Error no_address(std::string_view bytes, const char* why) {
  std::string shown(bytes.substr(0, most_address_bytes));
  for (char& c : shown)
    if (c < ' ' || c > '~') c = '?';
  return make_error(
      Code::corrupt,
      "\"{}\" is no address of a tcp NIC: {}; expected is tcp:host:port/life, as the NIC says it", shown,
      why);
}

}  // namespace

std::string encode(const NicAddress& address) {
  return fmt::format("{}{}/{:016x}", address_scheme, address.at.text(), address.life);
}

Result<NicAddress> read_address(std::string_view bytes) {
  if (bytes.size() > most_address_bytes) return no_address(bytes, "it is too long");
  if (!bytes.starts_with(address_scheme)) {
    const auto scheme = bytes.substr(0, bytes.find(':'));
    const bool named = scheme.size() < bytes.size() && !scheme.empty() &&
                       std::all_of(scheme.begin(), scheme.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    if (!named) return no_address(bytes, "it does not begin with tcp:");
    return make_error(Code::not_supported, "a tcp NIC cannot reach a NIC of kind {}", scheme);
  }
  const auto slash = bytes.rfind('/');
  if (slash == std::string_view::npos || bytes.size() - slash != 17)
    return no_address(bytes, "it has no life");
  const auto parsed = TcpAddress::parse(bytes.substr(address_scheme.size(), slash - address_scheme.size()));
  if (!parsed) return no_address(bytes, "host and port are missing");
  NicAddress address;
  const auto [end, error] =
      std::from_chars(bytes.data() + slash + 1, bytes.data() + bytes.size(), address.life, 16);
  if (error != std::errc() || end != bytes.data() + bytes.size())
    return no_address(bytes, "its life is no number");
  const auto at = numeric(parsed->host, parsed->port);
  if (!at || parsed->port == 0) return no_address(bytes, "its host is no IP address, or its port is 0");
  address.at = *at;
  return address;
}

Result<LocalAddress> find_local_address(const std::string& where) {
  const InterfaceAddresses interfaces;
  if (const auto at = numeric(where, 0)) {
    const auto* const found = interfaces.find([&](const ifaddrs& i) { return same_host(*at, i.ifa_addr); });
    return LocalAddress{*at, found == nullptr ? "" : found->ifa_name};
  }
  for (const int family : {AF_INET, AF_INET6}) {
    const auto* const found = interfaces.find(
        [&](const ifaddrs& i) { return where == i.ifa_name && is_usable(i.ifa_addr, family); });
    if (found != nullptr) return of_interface(*found);
  }
  return make_error(Code::not_found,
                    "\"{}\" is neither an IP address nor an interface with one: `ip address` shows both",
                    where);
}

}  // namespace headrace::rail::tcp
