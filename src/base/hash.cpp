// SPDX-License-Identifier: Apache-2.0
#include "base/hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace headrace {

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace headrace
