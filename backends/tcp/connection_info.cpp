// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/connection_info.hpp"

#include "base/hash.hpp"
#include "base/unique_fd.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>
#include <span>

namespace headrace::tcp {
namespace {

constexpr std::string_view opening = "headrace-tcp";

std::string_view next_word(std::string_view& text) {
  const std::size_t end = text.find(' ');
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return word;
}

}  // namespace

std::string ConnectionInfo::text() const {
  std::string text = fmt::format("{} 1 {:x}", opening, host);
  for (const TcpAddress& address : addresses) text += " " + address.text();
  return text;
}

Result<ConnectionInfo> ConnectionInfo::parse(std::string_view text) {
  if (next_word(text) != opening)
    return make_error(Code::corrupt, "connection information of a tcp backend begins with \"{}\"", opening);
  if (const auto version = next_word(text); version != "1")
    return make_error(Code::not_supported,
                      "connection information of version \"{}\" is not known here, only 1",
                      version.substr(0, 16));
  ConnectionInfo info;
  const std::string_view host = next_word(text);
  const auto [end, error] = std::from_chars(host.data(), host.data() + host.size(), info.host, 16);
  if (error != std::errc() || end != host.data() + host.size())
    return make_error(Code::corrupt, "\"{}\" in connection information is not a host's number",
                      host.substr(0, 32));
  while (!text.empty()) {
    if (info.addresses.size() == max_addresses)
      return make_error(Code::corrupt, "connection information has more than {} addresses", max_addresses);
    auto address = TcpAddress::parse(next_word(text));
    if (!address) return make_error(Code::corrupt, "connection information: {}", address.error().message);
    if (address->host.empty() || address->port == 0)
      return make_error(Code::corrupt, "connection information: \"{}\" lacks host or port", address->text());
    info.addresses.push_back(std::move(address).value());
  }
  return info;
}

std::vector<TcpAddress> ConnectionInfo::for_host(std::uint64_t other) const {
  std::vector<TcpAddress> ordered = addresses;
  if (host == 0 || other == 0) return ordered;
  const auto first_loopback = std::stable_partition(
      ordered.begin(), ordered.end(),
      [&](const TcpAddress& address) { return address.is_loopback() == (host == other); });
  if (host != other && first_loopback != ordered.begin()) ordered.erase(first_loopback, ordered.end());
  return ordered;
}

std::uint64_t this_host() {
  const UniqueFd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<std::byte, 64> text;
  if (!file) return 0;
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  return got <= 0 ? 0 : hash64(std::span(text).first(static_cast<std::size_t>(got)));
}

std::vector<SocketAddress> interface_addresses(int family) {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(raw, &::freeifaddrs);
  std::vector<SocketAddress> others, loopback;
  for (const ifaddrs* entry = all.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int its_family = entry->ifa_addr->sa_family;
    if ((its_family != AF_INET && its_family != AF_INET6) || (family != AF_UNSPEC && family != its_family))
      continue;
    SocketAddress address;
    address.length = its_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, entry->ifa_addr, address.length);
    if (its_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr))
      continue;
    ((entry->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : others).push_back(address);
  }
  others.insert(others.end(), loopback.begin(), loopback.end());
  return others;
}

bool is_numeric(const TcpAddress& address) {
  in6_addr ignored{};
  return ::inet_pton(AF_INET, address.host.c_str(), &ignored) == 1 ||
         ::inet_pton(AF_INET6, address.host.c_str(), &ignored) == 1;
}

}  // namespace headrace::tcp
