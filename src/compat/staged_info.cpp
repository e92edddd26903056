// SPDX-License-Identifier: Apache-2.0
#include "compat/staged_info.hpp"

#include "compat/endpoint.hpp"

namespace headrace::compat {
namespace {

constexpr std::string_view info_magic = "headrace-staged-1:";
constexpr char server_letter = 's', client_letter = 'c';
constexpr std::size_t fixed_bytes = 15;  // role, scope, bytes of a chunk, length of the descriptor

Error wrong(std::string_view why) {
  return make_error(Code::corrupt, "the information of the peer is wrong: {}", why);
}

}  // namespace

std::string encode(const StagedInfo& info) {
  std::string bytes(info_magic);
  bytes += info.is_server ? server_letter : client_letter;
  put_number(bytes, info.scope, 4);
  put_number(bytes, info.staging_bytes, 8);
  put_number(bytes, info.staging.bytes().size(), 2);
  return bytes + info.staging.bytes() + info.address.bytes();
}

Result<StagedInfo> read_staged_info(std::string_view bytes) {
  if (!bytes.starts_with(info_magic) || bytes.size() < info_magic.size() + fixed_bytes)
    return wrong("give what its setupLocalTransport returned");
  bytes.remove_prefix(info_magic.size());
  const char role = bytes.front();
  if (role != server_letter && role != client_letter) return wrong("it is neither a server nor a client");
  bytes.remove_prefix(1);
  StagedInfo info;
  info.is_server = role == server_letter;
  info.scope = static_cast<std::uint32_t>(take_number(bytes, 4));
  info.staging_bytes = take_number(bytes, 8);
  const auto length = take_number(bytes, 2);
  if (length > bytes.size()) return wrong("it is cut");
  HEADRACE_TRY(staging, FabricDescriptor::from_bytes(bytes.substr(0, length)));
  HEADRACE_TRY(address, FabricAddress::from_bytes(bytes.substr(length)));
  // Without a byte of a chunk no transfer would end.
  if (staging.length_bytes() <= sizeof(ChunkHead) ||
      staging.length_bytes() - sizeof(ChunkHead) != info.staging_bytes)
    return wrong("its staging buffer has another size");
  info.staging = staging;
  info.address = address;
  return info;
}

}  // namespace headrace::compat
