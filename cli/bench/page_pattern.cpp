// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/page_pattern.hpp"

#include "cli/bench/usable_cores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <system_error>
#include <thread>

namespace headrace::cli {
namespace {

// Odd, so that no two word indices below 2^64 give the same word.
constexpr std::uint64_t step = 0x9E3779B97F4A7C15;

/// An xor-shift. It is invertible, so words stay different; neighbouring words differ in many bits.
constexpr std::uint64_t mix(std::uint64_t x) { return x ^ (x >> 29); }

constexpr std::size_t part_bytes = std::size_t{8} << 20;  // the least for one thread
constexpr std::size_t most_threads = 8;
constexpr std::size_t cores_of_a_thread = 4;  // two processes fill and compare at once

/// The number of threads to use for `bytes`.
std::size_t threads_for(std::size_t bytes) {
  const std::size_t cores = usable_cores().size();
  return std::clamp<std::size_t>(std::min(bytes / part_bytes, cores / cores_of_a_thread), 1, most_threads);
}

/// Calls work(part, begin, end) for each share of the range [0, count), on a thread each. Filling and
/// comparing whole buffers take most of the time of a benchmark.
template <class Work>
void in_parts(std::size_t parts, std::size_t count, const Work& work) {
  std::vector<std::jthread> others;
  others.reserve(parts);
  for (std::size_t part = 0; part < parts; ++part) {
    const auto share = [&work, part, begin = count * part / parts, end = count * (part + 1) / parts] {
      work(part, begin, end);
    };
    try {
      if (part + 1 < parts) {
        others.emplace_back(share);
        continue;
      }
    } catch (const std::system_error&) {  // the system has no more threads: use this one
    }
    share();
  }
}

/// The first text that is not empty.
std::string first_of(const std::vector<std::string>& said) {
  const auto found = std::ranges::find_if(said, [](const std::string& text) { return !text.empty(); });
  return found == said.end() ? std::string() : *found;
}

}  // namespace

void fill_pattern(std::span<std::byte> buffer, std::uint64_t seed, std::size_t threads) {
  constexpr std::size_t word_bytes = sizeof(std::uint64_t);
  in_parts(threads > 0 ? threads : threads_for(buffer.size()), buffer.size() / word_bytes,
           [&](std::size_t, std::size_t begin, std::size_t end) {
             std::uint64_t x = seed + begin * step;
             for (std::size_t i = begin; i < end; ++i, x += step) {
               const std::uint64_t word = mix(x);
               std::memcpy(buffer.data() + i * word_bytes, &word, word_bytes);
             }
           });
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
                       std::uint64_t source_seed, std::uint64_t target_seed, std::size_t threads) {
  std::vector<bool> touched(target.size() / page_bytes);
  for (const std::uint32_t slot : pairs.to) touched[slot] = true;
  const auto moved_wrong = [&](std::size_t i) -> std::string {
    const auto page = target.subspan(pairs.to[i] * page_bytes, page_bytes);
    const auto at = pattern_difference(page, pairs.from[i] * page_bytes, source_seed);
    if (!at) return {};
    return fmt::format(
        "page {} of the request (from page {} to page {}, {} bytes each) is wrong from byte {} on{}", i,
        pairs.from[i], pairs.to[i], page_bytes, *at,
        pattern_difference(page, pairs.to[i] * page_bytes, target_seed) ? "" : ": it was not moved at all");
  };
  const auto changed = [&](std::size_t slot) -> std::string {
    if (touched[slot]) return {};
    const auto at =
        pattern_difference(target.subspan(slot * page_bytes, page_bytes), slot * page_bytes, target_seed);
    if (!at) return {};
    return fmt::format("page {} is not part of the request, but has changed from byte {} on", slot, *at);
  };
  const std::size_t parts = threads > 0 ? threads : threads_for(target.size());
  std::vector<std::string> said(parts);
  const auto look = [&](std::size_t count, const auto& at_one) {
    in_parts(parts, count, [&](std::size_t part, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end && said[part].empty(); ++i) said[part] = at_one(i);
    });
    return first_of(said);
  };
  if (std::string wrong = look(pairs.to.size(), moved_wrong); !wrong.empty()) return wrong;
  return look(touched.size(), changed);
}

std::uint64_t fresh_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace headrace::cli
