// SPDX-License-Identifier: Apache-2.0
// Data whose every 8-byte word tells where it belongs, so that a page in the wrong place, a stale one and a
// torn one are all seen. Made anew from a fresh seed before each transfer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace::cli {

/// Fills the buffer, whose length is a multiple of 8: the words of one seed are all different. `threads`: at
/// once, the same bytes however many; 0: as many as pay off, which is one for little.
void fill_pattern(std::span<std::byte> buffer, std::uint64_t seed, std::size_t threads = 0);
/// Where `bytes` first differ from what fill_pattern(seed) puts at `offset` (both multiples of 8).
[[nodiscard]] std::optional<std::size_t> pattern_difference(std::span<const std::byte> bytes,
                                                            std::uint64_t offset, std::uint64_t seed);

/// Which pages of two buffers belong together: page from[i] of one goes to page to[i] of the other.
struct PagePairs {
  std::vector<std::uint32_t> from, to;
};
/// `count` of the `slots` pages on each side, in order or scattered; the same for the same seed in any
/// process.
[[nodiscard]] PagePairs choose_pages(std::uint64_t slots, std::uint64_t count, bool scattered,
                                     std::uint64_t seed);

/// What is wrong with `target`, which was filled from `target_seed` and then had `pairs` moved into it out of
/// a buffer filled from `source_seed`: pages that were not to be touched are looked at as well. Empty:
/// nothing. `threads` as above.
[[nodiscard]] std::string wrong_page(std::span<const std::byte> target, const PagePairs& pairs,
                                     std::uint64_t page_bytes, std::uint64_t source_seed,
                                     std::uint64_t target_seed, std::size_t threads = 0);

/// A number that nobody has seen.
[[nodiscard]] std::uint64_t fresh_seed();

}  // namespace headrace::cli
