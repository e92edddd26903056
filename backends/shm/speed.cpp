// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/speed.hpp"

#include "backends/shm/attach.hpp"
#include "backends/shm/copy.hpp"
#include "base/clock.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace headrace::shm {
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

/// A walk over pages that a prefetcher cannot guess: an odd stride modulo a power of two visits each once.
constexpr std::size_t page_at(std::size_t i, std::size_t count) { return i * 89 % count; }

template <class Copy>
double best_ns(const Copy& copy) {
  double best = 1e18;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t begin = now_ns();
    copy();
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

struct Probe {
  std::vector<std::byte> from = std::vector<std::byte>(probe_bytes, std::byte{1});
  std::vector<std::byte> to = std::vector<std::byte>(probe_bytes, std::byte{2});
};

double time_mapped(Probe& probe, std::size_t page) {
  const std::size_t count = probe_bytes / page;
  return best_ns([&] {
    for (std::size_t i = 0; i < count; ++i) {
      copy_bytes(probe.to.data() + page_at(i, count) * page, probe.from.data() + page_at(i + 7, count) * page,
                 page, CopyMode::cached);
    }
  });
}

double time_attached(Probe& probe, std::size_t page) {
  const std::size_t count = probe_bytes / page;
  std::vector<iovec> here(count);
  std::vector<iovec> there(count);
  for (std::size_t i = 0; i < count; ++i) {
    here[i] = {probe.to.data() + page_at(i, count) * page, page};
    there[i] = {probe.from.data() + page_at(i + 7, count) * page, page};
  }
  bool works = true;
  const double ns = best_ns([&] {
    works = attach_copy(::getpid(), Direction::from_peer, here, there, probe_bytes).os_error == 0 && works;
  });
  return works ? ns : 0;
}

}  // namespace

CopySpeed SpeedMeter::mapped() {
  const std::lock_guard lock(mutex_);
  if (!mapped_) {
    Probe probe;
    const double small = time_mapped(probe, small_page);
    mapped_ = fit(small, time_mapped(probe, large_page));
  }
  return *mapped_;
}

CopySpeed SpeedMeter::attached() {
  const std::lock_guard lock(mutex_);
  if (!attached_) {
    Probe probe;
    const double small = time_attached(probe, small_page);
    const double large = time_attached(probe, large_page);
    attached_ =
        small > 0 && large > 0 ? fit(small, large) : CopySpeed{};  // 1 byte a second: not a path to take
  }
  return *attached_;
}

}  // namespace headrace::shm
