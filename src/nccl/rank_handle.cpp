// SPDX-License-Identifier: Apache-2.0
#include "nccl/rank_handle.hpp"

#include <array>
#include <cstring>
#include <type_traits>

namespace headrace::nccl {
namespace {

constexpr std::array<char, 8> mark{'H', 'R', 'N', 'C', 'C', 'L', '0', '1'};

/// A handle as bytes. The machines of a communicator have one byte order, as NCCL needs it.
struct Packed {
  std::array<char, 8> mark;
  std::uint64_t communicator;
  std::int32_t rank, size;
  std::uint64_t grows;
  UniqueId id, growth;
};
static_assert(std::has_unique_object_representations_v<Packed>);

}  // namespace

std::string RankHandle::encode() const {
  const Packed packed{mark, communicator, rank, size, growth ? 1U : 0U, id, growth.value_or(UniqueId{})};
  return {reinterpret_cast<const char*>(&packed), sizeof packed};
}

Result<RankHandle> RankHandle::decode(std::string_view bytes) {
  Packed packed{};
  if (bytes.size() == sizeof packed) std::memcpy(&packed, bytes.data(), sizeof packed);
  if (packed.mark != mark || packed.size < 1 || packed.rank < 0 || packed.rank >= packed.size ||
      packed.grows > 1)
    return make_error(Code::invalid_argument,
                      "a handle of {} bytes is none that init_handle of this backend returned", bytes.size());
  RankHandle handle{packed.communicator, packed.rank, packed.size, packed.id, std::nullopt};
  if (packed.grows == 1) handle.growth = packed.growth;
  return handle;
}

int ranks_that_grow(std::span<const RankHandle> handles) {
  const RankHandle& first = handles.front();
  const auto size = static_cast<std::size_t>(first.size);
  if (first.rank != 0 || !first.growth || size >= handles.size()) return 0;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const bool inside = handles[i].communicator == first.communicator;
    if (inside != (i < size)) return 0;
    if (inside && (handles[i].rank != static_cast<int>(i) || handles[i].size != first.size)) return 0;
  }
  return first.size;
}

}  // namespace headrace::nccl
