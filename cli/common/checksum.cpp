// SPDX-License-Identifier: Apache-2.0
#include "cli/common/checksum.hpp"

#ifndef NDEBUG
// Its functions are always_inline and called through pointers, which GCC with -Og cannot inline.
#define XXH_NO_INLINE_HINTS 1
#endif
#include <xxhash.h>

#include <new>

namespace headrace::cli {
namespace {

XXH3_state_t* xxh3(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

RunningChecksum::RunningChecksum()
    : state_(XXH3_createState(), [](void* state) { XXH3_freeState(xxh3(state)); }) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(xxh3(state_.get()));
}

void RunningChecksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(xxh3(state_.get()), bytes.data(), bytes.size());
}

std::uint64_t RunningChecksum::take() {
  const std::uint64_t sum = XXH3_64bits_digest(xxh3(state_.get()));
  XXH3_64bits_reset(xxh3(state_.get()));
  return sum;
}

}  // namespace headrace::cli
