// SPDX-License-Identifier: Apache-2.0
#include "fabric/address.hpp"

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

/// `count` NICs, of which a list is made.
std::string read_nics(wire::PacketReader& in, std::size_t count) {
  std::vector<std::string> each;
  while (in.good() && each.size() < count) each.push_back(in.text(1, rail::max_bytes_of_nic));
  return rail::encode_nic_list(each);
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
  out.bytes(owner);           // begins with the number of NICs
  out.bytes(keys.substr(1));  // has as many
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
  parts.owner = read_nics(in, count);
  parts.keys = read_nics(in, count);
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
