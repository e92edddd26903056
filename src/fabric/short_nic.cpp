// SPDX-License-Identifier: Apache-2.0
#include "fabric/short_nic.hpp"

#include "rail/link_message.hpp"
#include "rail/shm/address.hpp"
#include "rail/stream/memories.hpp"
#include "rail/tcp/address.hpp"

#include <arpa/inet.h>

#include <cstring>
#include <optional>

namespace headrace::fabric {
namespace {

enum class Form : std::uint8_t {
  plain,       // a text
  tcp_v4,      // 4 bytes, port u16, life u64
  tcp_v6,      // 16 bytes, port u16, life u64
  near,        // host u64, life u64
  key,         // memory u32; length and life are those of the descriptor and of the address
  key_of_gpu,  // the same, of memory of a GPU
};

void write_plain(wire::ByteWriter& out, const std::string& bytes) {
  out.number(static_cast<std::uint8_t>(Form::plain));
  out.text(bytes, rail::max_bytes_of_nic);
}

/// Host and port, without a scope.
template <class Address>
SocketAddress socket_address(int family, std::string_view host, std::uint16_t port) {
  SocketAddress at;
  at.length = sizeof(Address);
  at.storage.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(at.storage);
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, host.data(), host.size());
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(at.storage);
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, host.data(), host.size());
  }
  return at;
}

template <class Address, std::size_t HostBytes>
std::string read_tcp(wire::PacketReader& in, int family) {
  const std::string_view host = in.bytes(HostBytes);
  const auto port = in.number<std::uint16_t>();
  const auto life = in.number<std::uint64_t>();
  if (!in.good()) return {};
  return rail::tcp::encode({socket_address<Address>(family, host, port), life});
}

std::string short_tcp(const rail::tcp::NicAddress& address) {
  const bool v4 = address.at.family() == AF_INET;
  const auto& at = address.at.storage;
  wire::ByteWriter out;
  out.number(static_cast<std::uint8_t>(v4 ? Form::tcp_v4 : Form::tcp_v6));
  const void* const host = v4 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(at).sin_addr)
                              : &reinterpret_cast<const sockaddr_in6&>(at).sin6_addr;
  out.bytes({static_cast<const char*>(host), v4 ? sizeof(in_addr) : sizeof(in6_addr)});
  out.number(address.at.port());
  out.number(address.life);
  return std::move(out).take();
}

std::optional<std::string> short_form(const std::string& address) {
  if (const auto tcp = rail::tcp::read_address(address)) return short_tcp(*tcp);
  const auto near = rail::shm::read_near_address(address);
  if (!near) return std::nullopt;
  wire::ByteWriter out;
  out.number(static_cast<std::uint8_t>(Form::near));
  out.number(near->host);
  out.number(near->life);
  return std::move(out).take();
}

/// Of the NIC with that address.
std::optional<std::uint64_t> life_of(const std::string& address) {
  if (const auto tcp = rail::tcp::read_address(address)) return tcp->life;
  if (const auto near = rail::shm::read_near_address(address)) return near->life;
  return std::nullopt;
}

std::string long_key(std::uint32_t memory, bool gpu, const KeyContext& context) {
  const auto life = life_of(context.address);
  if (!life) return {};
  return rail::stream::encode(rail::stream::Key{*life, memory, context.length_bytes, gpu});
}

}  // namespace

void write_short_address(wire::ByteWriter& out, const std::string& address) {
  const auto made = short_form(address);
  if (!made) return write_plain(out, address);
  wire::PacketReader again(*made);
  // A text that says the same in other words ("tcp:[::0001]:80/...") is another name of a link.
  if (read_short_address(again) != address) return write_plain(out, address);
  out.bytes(*made);
}

std::string read_short_address(wire::PacketReader& in) {
  switch (Form{in.number<std::uint8_t>()}) {
    case Form::plain:
      return in.text(1, rail::max_bytes_of_nic);
    case Form::tcp_v4:
      return read_tcp<sockaddr_in, sizeof(in_addr)>(in, AF_INET);
    case Form::tcp_v6:
      return read_tcp<sockaddr_in6, sizeof(in6_addr)>(in, AF_INET6);
    case Form::near: {
      const auto host = in.number<std::uint64_t>();
      return rail::shm::encode({host, in.number<std::uint64_t>()});
    }
    default:
      in.fail();
      return {};
  }
}

void write_short_key(wire::ByteWriter& out, const std::string& key, const KeyContext& context) {
  const auto read = rail::stream::read_key(key);
  if (!read || long_key(read->memory, read->gpu, context) != key) return write_plain(out, key);
  out.number(static_cast<std::uint8_t>(read->gpu ? Form::key_of_gpu : Form::key));
  out.number(read->memory);
}

std::string read_short_key(wire::PacketReader& in, const KeyContext& context) {
  const Form form{in.number<std::uint8_t>()};
  if (form == Form::plain) return in.text(1, rail::max_bytes_of_nic);
  std::string key;
  if (form == Form::key || form == Form::key_of_gpu)
    key = long_key(in.number<std::uint32_t>(), form == Form::key_of_gpu, context);
  if (key.empty()) in.fail();
  return key;
}

}  // namespace headrace::fabric
