// SPDX-License-Identifier: Apache-2.0
// Test data in which every 8-byte word tells its place. So the comparison finds pages in the wrong place,
// pages with old bytes and pages that moved in part. Each iteration uses new seeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace::cli {

/// Fills the buffer, whose length is a multiple of 8. All words of one seed are different.
///   threads  how many to use; 0 chooses by the length; the bytes do not depend on it
void fill_pattern(std::span<std::byte> buffer, std::uint64_t seed, std::size_t threads = 0);
/// The first position at which `bytes` differ from the bytes that fill_pattern(seed) writes at `offset`. The
/// length and `offset` are multiples of 8.
[[nodiscard]] std::optional<std::size_t> pattern_difference(std::span<const std::byte> bytes,
                                                            std::uint64_t offset, std::uint64_t seed);

/// Page from[i] of one buffer moves to page to[i] of the other.
struct PagePairs {
  std::vector<std::uint32_t> from, to;
};
/// Chooses `count` of the `slots` pages of each buffer, in order or scattered. Every process gets the same
/// pages for the same seed.
[[nodiscard]] PagePairs choose_pages(std::uint64_t slots, std::uint64_t count, bool scattered,
                                     std::uint64_t seed);

/// Describes the first wrong page of `target`; empty if there is none. `target` was filled from
/// `target_seed`, then `pairs` were moved into it from a buffer filled from `source_seed`. Pages that no pair
/// names are compared too.
///   threads  as in fill_pattern
[[nodiscard]] std::string wrong_page(std::span<const std::byte> target, const PagePairs& pairs,
                                     std::uint64_t page_bytes, std::uint64_t source_seed,
                                     std::uint64_t target_seed, std::size_t threads = 0);

/// A random number.
[[nodiscard]] std::uint64_t fresh_seed();

}  // namespace headrace::cli
