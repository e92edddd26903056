// SPDX-License-Identifier: Apache-2.0
// What the store keeps in etcd: <namespace>/agents/<name>/<label> has the head of an entry, and
// <namespace>/chunks/<name>/<label>/<generation>/<number> its bytes if they are long. docs/metadata.md.
#pragma once

#include "metadata/etcd_client.hpp"
#include "wire/bounded_reader.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::metadata {

inline constexpr std::size_t etcd_chunk_bytes = EtcdClient::most_value_bytes;

[[nodiscard]] std::string agents_prefix(const std::string& name_space);
[[nodiscard]] std::string head_key(const std::string& name_space, std::string_view name,
                                   std::string_view label);
[[nodiscard]] std::string chunks_prefix(const std::string& name_space, std::string_view name,
                                        std::string_view label);
// Of the result of chunks_prefix.
[[nodiscard]] std::string generation_prefix(const std::string& chunks, std::uint64_t generation);
[[nodiscard]] std::string chunk_key(const std::string& chunks, std::uint64_t generation,
                                    std::uint32_t number);
/// Name and label of a head's key; nullopt for keys of others.
[[nodiscard]] std::optional<std::pair<std::string, std::string>> name_and_label(const std::string& name_space,
                                                                                std::string_view key);

/// The head of an entry, before its bytes or instead of them.
struct EtcdHead {
  std::uint32_t chunks = 0;  ///< 0: the bytes follow the head
  std::uint64_t length = 0;
  std::uint64_t generation = 0;  ///< of its chunks
  std::uint64_t checksum = 0;
};

[[nodiscard]] std::uint64_t checksum_of(std::string_view bytes);
[[nodiscard]] std::string write_head(const EtcdHead& head, std::string_view inline_bytes);
///   errors  corrupt
[[nodiscard]] Result<EtcdHead> read_head(wire::BoundedReader& reader);

}  // namespace headrace::metadata
