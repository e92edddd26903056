// SPDX-License-Identifier: Apache-2.0
#include "metadata/etcd_keys.hpp"

#include "base/hash.hpp"
#include "metadata/store.hpp"
#include "wire/byte_writer.hpp"

#include <fmt/format.h>

#include <span>

namespace headrace::metadata {
namespace {

constexpr std::string_view head_magic = "HRSH";

}  // namespace

std::string agents_prefix(const std::string& name_space) { return name_space + "/agents/"; }

std::string head_key(const std::string& name_space, std::string_view name, std::string_view label) {
  return agents_prefix(name_space) + escape_name(name) + "/" + escape_name(label);
}

std::string chunks_prefix(const std::string& name_space, std::string_view name, std::string_view label) {
  return name_space + "/chunks/" + escape_name(name) + "/" + escape_name(label) + "/";
}

std::string generation_prefix(const std::string& chunks, std::uint64_t generation) {
  return chunks + fmt::format("{:016x}/", generation);
}

std::string chunk_key(const std::string& chunks, std::uint64_t generation, std::uint32_t number) {
  return generation_prefix(chunks, generation) + fmt::format("{:08x}", number);
}

std::optional<std::pair<std::string, std::string>> name_and_label(const std::string& name_space,
                                                                  std::string_view key) {
  const std::string prefix = agents_prefix(name_space);
  if (!key.starts_with(prefix)) return std::nullopt;
  key.remove_prefix(prefix.size());
  const std::size_t slash = key.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  auto name = unescape_name(key.substr(0, slash));
  auto label = unescape_name(key.substr(slash + 1));
  if (!name || !label) return std::nullopt;
  return std::pair(std::move(name).value(), std::move(label).value());
}

std::uint64_t checksum_of(std::string_view bytes) { return hash64(std::as_bytes(std::span(bytes))); }

std::string write_head(const EtcdHead& head, std::string_view inline_bytes) {
  wire::ByteWriter writer;
  writer.bytes(head_magic);
  writer.number(head.chunks);
  writer.number(head.length);
  writer.number(head.generation);
  writer.number(head.checksum);
  writer.bytes(inline_bytes);
  return std::move(writer).take();
}

Result<EtcdHead> read_head(wire::BoundedReader& reader) {
  HEADRACE_TRY(magic, reader.bytes(head_magic.size(), "the magic"));
  if (magic != head_magic) return reader.corrupt("it does not begin with \"{}\"", head_magic);
  HEADRACE_TRY(chunks, reader.number<std::uint32_t>("the number of chunks"));
  HEADRACE_TRY(length, reader.number<std::uint64_t>("the length"));
  HEADRACE_TRY(generation, reader.number<std::uint64_t>("the generation"));
  HEADRACE_TRY(checksum, reader.number<std::uint64_t>("the checksum"));
  const EtcdHead head{chunks, length, generation, checksum};
  const std::uint64_t most = chunks == 0 ? reader.remaining() : std::uint64_t{chunks} * etcd_chunk_bytes;
  if (length > most || length > Store::most_entry_bytes)
    return reader.corrupt("{} bytes in {} chunks", length, chunks);
  return head;
}

}  // namespace headrace::metadata
