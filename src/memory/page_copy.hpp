// SPDX-License-Identifier: Apache-2.0
// memcpy for pages: past the caches where there is much to move, with the next page already on its way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace headrace {

enum class CopyMode : std::uint8_t {
  cached,     ///< what is copied is likely to be used soon, and fits in the caches
  streaming,  ///< there is far more than the caches hold: non-temporal stores save reading the target first
};

/// Copies without overlap. After `streaming` copies call finish_streaming() before telling anybody.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, CopyMode mode) noexcept;

/// Orders streaming stores before everything that this thread stores later.
void finish_streaming() noexcept;

/// Copies into memory that another core has read a moment ago, as a ring's is, and meanwhile fetches `next`,
/// which will be copied after it: what is longer than `bytes` of it is left.
void copy_and_fetch(std::byte* to, const std::byte* from, std::size_t bytes,
                    std::span<const std::byte> next) noexcept;

// Inlined by force: GCC 12 takes a function that does nothing but prefetch for one without effect, and drops
// its calls.

/// Starts to fetch the beginning of a page that will be copied next, so that its first cache and TLB misses
/// pass while this one is copied.
[[gnu::always_inline]] inline void prefetch_source(const std::byte* from) noexcept {
  constexpr std::size_t lines = 8;
  for (std::size_t i = 0; i < lines; ++i) __builtin_prefetch(from + 64 * i, 0);
}

/// The same of its target. Not before `streaming` copies, which do not read it: fetched in vain, its lines
/// cost a quarter of the speed (bench/notes/shm.md).
[[gnu::always_inline]] inline void prefetch_target(const std::byte* to) noexcept {
  constexpr std::size_t lines = 8;
  for (std::size_t i = 0; i < lines; ++i) __builtin_prefetch(to + 64 * i, 1);
}

/// For a page that comes later: where it lies is looked up in the page tables meanwhile, that of its end too.
[[gnu::always_inline]] inline void prefetch_translation(std::span<const std::byte> page) noexcept {
  if (page.empty()) return;
  __builtin_prefetch(page.data(), 0, 2);
  __builtin_prefetch(page.data() + page.size() - 1, 0, 2);
}

}  // namespace headrace
