// SPDX-License-Identifier: Apache-2.0
#include "cli/page_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace headrace::cli {
namespace {

// Odd, so that no two indices below 2^64 give the same word.
constexpr std::uint64_t step = 0x9E3779B97F4A7C15;

/// The xor-shift is invertible: words stay different, and look nothing like their neighbours.
constexpr std::uint64_t mix(std::uint64_t x) { return x ^ (x >> 29); }

}  // namespace

void fill_pattern(std::span<std::byte> buffer, std::uint64_t seed) {
  std::uint64_t x = seed;
  for (std::size_t at = 0; at < buffer.size(); at += sizeof x, x += step) {
    const std::uint64_t word = mix(x);
    std::memcpy(buffer.data() + at, &word, sizeof word);
  }
}

std::optional<std::size_t> pattern_difference(std::span<const std::byte> bytes, std::uint64_t offset,
                                              std::uint64_t seed) {
  std::uint64_t x = seed + offset / sizeof(std::uint64_t) * step;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof x, x += step) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    if (word != mix(x)) return at;
  }
  return std::nullopt;
}

PagePairs choose_pages(std::uint64_t slots, std::uint64_t count, bool scattered, std::uint64_t seed) {
  PagePairs pairs;
  for (auto* side : {&pairs.from, &pairs.to}) {
    side->resize(slots);
    std::iota(side->begin(), side->end(), 0U);
    if (scattered) std::shuffle(side->begin(), side->end(), std::mt19937_64(seed++));
    side->resize(count);
  }
  return pairs;
}

std::string wrong_page(std::span<const std::byte> target, const PagePairs& pairs, std::uint64_t page_bytes,
                       std::uint64_t source_seed, std::uint64_t target_seed) {
  std::vector<bool> touched(target.size() / page_bytes);
  for (std::size_t i = 0; i < pairs.to.size(); ++i) {
    touched[pairs.to[i]] = true;
    const auto page = target.subspan(pairs.to[i] * page_bytes, page_bytes);
    if (const auto at = pattern_difference(page, pairs.from[i] * page_bytes, source_seed))
      return fmt::format(
          "page {} of the request (from page {} to page {}, {} bytes each) is wrong from byte {} on{}", i,
          pairs.from[i], pairs.to[i], page_bytes, *at,
          pattern_difference(page, pairs.to[i] * page_bytes, target_seed) ? "" : ": it was not moved at all");
  }
  for (std::size_t slot = 0; slot < touched.size(); ++slot) {
    if (touched[slot]) continue;
    if (const auto at =
            pattern_difference(target.subspan(slot * page_bytes, page_bytes), slot * page_bytes, target_seed))
      return fmt::format("page {} was not part of the request and has changed from byte {} on", slot, *at);
  }
  return {};
}

std::uint64_t fresh_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace headrace::cli
