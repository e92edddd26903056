// SPDX-License-Identifier: Apache-2.0
#include <headrace/memory.hpp>

#include "base/errors.hpp"

#include <array>

namespace headrace {

std::string_view kind_name(MemoryKind kind) noexcept {
  constexpr std::array<std::string_view, 5> names{"dram", "vram", "block", "file", "object"};
  const auto index = static_cast<std::size_t>(kind);
  return index < names.size() ? names[index] : "unknown";
}

Result<MemoryKind> kind_from_name(std::string_view name) {
  for (int k = 0; k <= static_cast<int>(MemoryKind::object); ++k)
    if (kind_name(static_cast<MemoryKind>(k)) == name) return static_cast<MemoryKind>(k);
  return make_error(Code::invalid_argument,
                    "{} is no kind of memory: there are dram, vram, block, file and object", name);
}

}  // namespace headrace
