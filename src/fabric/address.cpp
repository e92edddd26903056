// SPDX-License-Identifier: Apache-2.0
#include "fabric/address.hpp"

#include "fabric/short_nic.hpp"
#include "rail/nic_list.hpp"
#include "wire/byte_writer.hpp"
#include "wire/packet_reader.hpp"

#include <utility>

namespace headrace::fabric {
namespace {

constexpr std::string_view address_magic = "Fa";
constexpr std::string_view descriptor_magic = "Fd";
constexpr std::uint8_t version = 1;
constexpr std::size_t most_groups = 64;
constexpr std::size_t most_list_bytes = 1 + rail::max_rails * (2 + rail::max_bytes_of_nic);

Error damaged(std::string_view what, std::size_t bytes) {
  return make_error(Code::corrupt,
                    "{} bytes are no {}, or a damaged or cut one: pass on the bytes that the peer's {} gives",
                    bytes, what, what);
}

/// Skips magic and version.
Result<void> read_beginning(wire::PacketReader& in, std::string_view magic, std::string_view what,
                            std::size_t bytes) {
  if (in.bytes(magic.size()) != magic) return damaged(what, bytes);
  const auto read = in.number<std::uint8_t>();
  if (in.good() && read != version)
    return make_error(Code::not_supported, "the {} is of version {}, and this library reads version {}", what,
                      read, version);
  return {};
}

/// What `encode_nic_list` made here.
std::vector<std::string> each_of(const std::string& list) {
  wire::PacketReader in(list);
  std::vector<std::string> each(in.number<std::uint8_t>());
  for (std::string& one : each) one = in.text(0, rail::max_bytes_of_nic);
  return each;
}

bool valid_count(std::size_t count) { return count >= 1 && count <= rail::max_rails; }

}  // namespace

std::shared_ptr<const AddressParts> make_address(std::uint64_t fabric, std::vector<NicList> groups) {
  wire::ByteWriter out;
  out.bytes(address_magic);
  out.number(version);
  out.number(fabric);
  out.number(static_cast<std::uint8_t>(groups.size()));
  for (const NicList& group : groups) out.text(group, UINT16_MAX);
  return std::make_shared<AddressParts>(AddressParts{std::move(out).take(), fabric, std::move(groups)});
}

Result<std::shared_ptr<const AddressParts>> read_address(std::string_view bytes) {
  constexpr std::string_view what = "address of a fabric";
  wire::PacketReader in(bytes);
  HEADRACE_TRY_VOID(read_beginning(in, address_magic, what, bytes.size()));
  AddressParts parts{std::string(bytes), in.number<std::uint64_t>(), {}};
  const std::size_t count = in.number<std::uint8_t>();
  while (in.good() && parts.groups.size() < count) parts.groups.push_back(in.text(1, most_list_bytes));
  if (!in.complete() || count == 0 || count > most_groups) return damaged(what, bytes.size());
  for (const NicList& group : parts.groups)
    if (!rail::read_nic_list(group, what)) return damaged(what, bytes.size());
  return std::make_shared<const AddressParts>(std::move(parts));
}

std::shared_ptr<const DescriptorParts> make_descriptor(FabricAccess access, std::uint64_t length_bytes,
                                                       const NicList& owner, const std::string& keys) {
  wire::ByteWriter out;
  out.bytes(descriptor_magic);
  out.number(version);
  out.number(static_cast<std::uint8_t>(access));
  out.number(length_bytes);
  const auto addresses = each_of(owner), each_key = each_of(keys);
  out.number(static_cast<std::uint8_t>(addresses.size()));
  for (std::size_t nic = 0; nic < addresses.size(); ++nic) {
    write_short_address(out, addresses[nic]);
    write_short_key(out, each_key[nic], {addresses[nic], length_bytes});
  }
  return std::make_shared<DescriptorParts>(
      DescriptorParts{std::move(out).take(), access, length_bytes, owner, keys});
}

Result<std::shared_ptr<const DescriptorParts>> read_descriptor(std::string_view bytes) {
  constexpr std::string_view what = "descriptor of a fabric's memory";
  wire::PacketReader in(bytes);
  HEADRACE_TRY_VOID(read_beginning(in, descriptor_magic, what, bytes.size()));
  DescriptorParts parts;
  parts.bytes = bytes;
  const auto access = in.number<std::uint8_t>();
  parts.length_bytes = in.number<std::uint64_t>();
  const std::size_t count = in.number<std::uint8_t>();
  if (!valid_count(count)) return damaged(what, bytes.size());
  std::vector<std::string> addresses, keys;
  while (in.good() && addresses.size() < count) {
    addresses.push_back(read_short_address(in));
    keys.push_back(read_short_key(in, {addresses.back(), parts.length_bytes}));
  }
  parts.owner = rail::encode_nic_list(addresses);
  parts.keys = rail::encode_nic_list(keys);
  const bool known = access >= static_cast<std::uint8_t>(FabricAccess::readable) &&
                     access <= static_cast<std::uint8_t>(FabricAccess::writable);
  if (!in.complete() || !known || parts.length_bytes == 0) return damaged(what, bytes.size());
  parts.access = static_cast<FabricAccess>(access);
  return std::make_shared<const DescriptorParts>(std::move(parts));
}

std::string name_of(const NicList& nics) {
  const auto each = rail::read_nic_list(nics, "an address");
  if (!each) return "an unreadable address";
  std::string name;
  for (const char c : each->front()) name += c < ' ' || c > '~' ? '?' : c;
  return each->size() == 1 ? name : fmt::format("{} and {} more", name, each->size() - 1);
}

}  // namespace headrace::fabric
