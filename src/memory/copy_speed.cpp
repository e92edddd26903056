// SPDX-License-Identifier: Apache-2.0
#include "memory/copy_speed.hpp"

#include "base/clock.hpp"
#include "memory/page_copy.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

namespace headrace {
namespace {

constexpr std::size_t small_page = 4096;
constexpr std::size_t large_page = 64 * 1024;
constexpr std::size_t probe_bytes = 2
                                    << 20;  // beyond a core's own caches, touched in well under a millisecond
constexpr int rounds = 3;

// A probe that others took the core from tells of them, not of this path: no copy here is slower than two
// through a socket, and what slows this process down slows those too. Seen: a loaded machine on which tcp's
// constant won over shm.
constexpr double least_bytes_per_second = 4e9;
constexpr double most_ns_per_page = 90;

std::atomic<unsigned> measurements = 0;

/// A walk over pages that a prefetcher cannot guess: an odd stride modulo a power of two visits each once.
constexpr std::size_t page_at(std::size_t i, std::size_t count) { return i * 89 % count; }

CopyProbe probe_of(std::span<std::byte> to, std::span<const std::byte> from, std::size_t page_bytes) {
  CopyProbe probe{{}, page_bytes};
  const std::size_t count = probe_bytes / page_bytes;
  for (std::size_t i = 0; i < count; ++i) {
    probe.pages.push_back(
        {to.data() + page_at(i, count) * page_bytes, from.data() + page_at(i + 7, count) * page_bytes});
  }
  return probe;
}

/// The best of some rounds; none if one of them failed.
std::optional<double> best_ns(const std::function<bool(const CopyProbe&)>& copy, const CopyProbe& probe) {
  double best = 1e18;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t begin = now_ns();
    if (!copy(probe)) return std::nullopt;
    best = std::min(best, static_cast<double>(now_ns() - begin));
  }
  return std::max(best, 1.0);
}

/// From the time for the same bytes in small and in large pages: what a page costs, and what a byte does.
CopySpeed fit(double small_ns, double large_ns) {
  constexpr double bytes = probe_bytes;
  constexpr double small_pages = bytes / small_page;
  constexpr double large_pages = bytes / large_page;
  const double ns_per_page =
      std::clamp((small_ns - large_ns) / (small_pages - large_pages), 0.0, most_ns_per_page);
  const double bytes_ns = std::max(1.0, large_ns - ns_per_page * large_pages);
  return {std::max(bytes * 1e9 / bytes_ns, least_bytes_per_second), ns_per_page};
}

}  // namespace

CopySpeed measure_copies(const std::function<bool(const CopyProbe&)>& copy) {
  measurements.fetch_add(1, std::memory_order_relaxed);
  const std::vector<std::byte> from(probe_bytes, std::byte{1});
  std::vector<std::byte> to(probe_bytes, std::byte{2});
  const auto small = best_ns(copy, probe_of(to, from, small_page));
  const auto large = small ? best_ns(copy, probe_of(to, from, large_page)) : small;
  return large ? fit(*small, *large) : CopySpeed{};
}

unsigned copy_measurements() { return measurements.load(std::memory_order_relaxed); }

CopySpeed speed_of_copies() {
  static const CopySpeed speed = measure_copies([](const CopyProbe& probe) {
    for (const auto& [to, from] : probe.pages) copy_bytes(to, from, probe.page_bytes, CopyMode::cached);
    return true;
  });
  return speed;
}

}  // namespace headrace
