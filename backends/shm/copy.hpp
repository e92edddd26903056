// SPDX-License-Identifier: Apache-2.0
// memcpy for pages: past the caches where there is much to move, with the next page already on its way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace::shm {

enum class CopyMode : std::uint8_t {
  cached,     ///< what is copied is likely to be used soon, and fits in the caches
  streaming,  ///< there is far more than the caches hold: non-temporal stores save reading the target first
};

/// Copies without overlap. After `streaming` copies call finish_streaming() before telling anybody.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, CopyMode mode) noexcept;

/// Orders streaming stores before everything that this thread stores later.
void finish_streaming() noexcept;

/// Starts to fetch the beginning of the next page, so that its first cache and TLB misses pass while this one
/// is copied.
inline void prefetch_page(const std::byte* to, const std::byte* from) noexcept {
  constexpr std::size_t lines = 8;
  for (std::size_t i = 0; i < lines; ++i) {
    __builtin_prefetch(from + 64 * i, 0);
    __builtin_prefetch(to + 64 * i, 1);
  }
}

}  // namespace headrace::shm
