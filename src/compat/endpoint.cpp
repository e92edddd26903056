// SPDX-License-Identifier: Apache-2.0
#include "compat/endpoint.hpp"

#include "base/errors.hpp"
#include "base/random.hpp"

#include <headrace/topology.hpp>

#include <atomic>
#include <charconv>
#include <mutex>
#include <utility>

namespace headrace::compat {
namespace {

constexpr std::string_view url_magic = "headrace-transport-1:";
std::byte nothing_byte{};

std::vector<int> gpus_of_process() {
  std::vector<int> gpus;
  for (const auto& group : detect_topology().groups)
    if (group.gpu && group.gpu->index) gpus.push_back(*group.gpu->index);
  return gpus;
}

Result<std::shared_ptr<Endpoint>> open_endpoint() {
  auto opened = Fabric::open({.devices = gpus_of_process()});
  if (!opened) return std::move(opened).error();
  auto nothing = opened->register_memory({.address = &nothing_byte, .length_bytes = 1});
  if (!nothing) return std::move(nothing).error();
  return std::make_shared<Endpoint>(*std::move(opened), *nothing);
}

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::optional<std::uint64_t> number_of_hex(std::string_view hex) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), number, 16);
  if (hex.empty() || error != std::errc{} || end != hex.data() + hex.size()) return std::nullopt;
  return number;
}

std::optional<std::string> bytes_of_hex(std::string_view hex) {
  std::string bytes;
  for (; hex.size() >= 2; hex.remove_prefix(2)) {
    const auto byte = number_of_hex(hex.substr(0, 2));
    if (!byte) return std::nullopt;
    bytes += static_cast<char>(*byte);
  }
  if (!hex.empty()) return std::nullopt;
  return bytes;
}

/// The number of 8 bytes that are written as hexadecimal digits, first byte first.
std::optional<std::uint64_t> process_of_hex(std::string_view hex) {
  const auto bytes = bytes_of_hex(hex);
  if (!bytes || bytes->size() != 8) return std::nullopt;
  std::string_view rest = *bytes;
  return take_number(rest, 8);
}

}  // namespace

Endpoint::Endpoint(Fabric opened, FabricMemory nothing)
    : fabric(std::move(opened)), id(random_u64()), nothing_(std::move(nothing)) {}

Result<std::shared_ptr<Endpoint>> Endpoint::shared() {
  static std::mutex mutex;
  static std::weak_ptr<Endpoint> open;
  const std::scoped_lock lock(mutex);
  if (auto endpoint = open.lock(); endpoint && !endpoint->fork.forked()) return endpoint;
  auto endpoint = open_endpoint();
  if (endpoint) open = *endpoint;
  return endpoint;
}

std::uint32_t Endpoint::new_scope() {
  static std::atomic<std::uint64_t> next{random_u64()};
  return static_cast<std::uint32_t>(next++ & 0x7fffffff);  // larger ones are the engine's own
}

Result<FabricWork> Endpoint::watch(const FabricAddress& address) {
  const auto peer = fabric.connect(address);
  if (!peer) return peer.error();
  return fabric.send(*peer, nothing_, 0, 1);
}

Result<FabricWork> Endpoint::idle(Timeout timeout) {
  const auto own = fabric.connect(fabric.address());
  if (!own) return own.error();
  return fabric.send(*own, nothing_, 0, 1, {.timeout = timeout});
}

// --- what peers are told

void put_number(std::string& bytes, std::uint64_t number, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) bytes += static_cast<char>(number >> 8 * i);
}

std::uint64_t take_number(std::string_view& bytes, std::size_t width) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < width; ++i)
    number |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << 8 * i;
  bytes.remove_prefix(width);
  return number;
}

std::string encode(const Url& url) {
  std::string bytes(url_magic);
  put_number(bytes, url.process, 8);
  put_number(bytes, url.scope, 4);
  return bytes + url.address.bytes();
}

std::string write_url(const Endpoint& endpoint, std::uint32_t scope) {
  return encode(Url{endpoint.id, scope, endpoint.fabric.address()});
}

Result<Url> read_url(std::string_view bytes) {
  if (!bytes.starts_with(url_magic) || bytes.size() < url_magic.size() + 12)
    return make_error(Code::corrupt,
                      "the peer's URL is none of Headrace: give what RdmaTransport::bind returned there");
  bytes.remove_prefix(url_magic.size());
  Url url;
  url.process = take_number(bytes, 8);
  url.scope = static_cast<std::uint32_t>(take_number(bytes, 4));
  auto address = FabricAddress::from_bytes(bytes);
  if (!address) return std::move(address).error().within("the peer's URL");
  url.address = *std::move(address);
  return url;
}

std::string encode(const AccessKey& key) {
  std::string process;
  put_number(process, key.process, 8);
  return fmt::format("{}:{:x}:{}", hex_of(process), key.address, hex_of(key.descriptor.bytes()));
}

std::string write_key(const Endpoint& endpoint, const FabricMemory& memory) {
  return encode(AccessKey{endpoint.id, memory.address(), memory.descriptor()});
}

Result<AccessKey> read_key(std::string_view text) {
  const auto first = text.find(':');
  const auto second = first == std::string_view::npos ? first : text.find(':', first + 1);
  if (second == std::string_view::npos)
    return make_error(Code::corrupt,
                      "the access key names no memory of Headrace: give RdmaMemory::remoteKey of the peer");
  const auto process = process_of_hex(text.substr(0, first));
  const auto address = number_of_hex(text.substr(first + 1, second - first - 1));
  const auto bytes = bytes_of_hex(text.substr(second + 1));
  if (!process || !address || !bytes)
    return make_error(Code::corrupt, "the access key is damaged: give RdmaMemory::remoteKey of the peer");
  auto descriptor = FabricDescriptor::from_bytes(*bytes);
  if (!descriptor) return std::move(descriptor).error().within("the access key");
  return AccessKey{*process, *address, *std::move(descriptor)};
}

}  // namespace headrace::compat
