// SPDX-License-Identifier: Apache-2.0
// How fast this machine copies pages, measured once when it is first asked for: some milliseconds of work.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace headrace {

/// One thread, pages of 4 KiB at random, memory larger than the private caches.
struct CopySpeed {
  double bytes_per_second = 1;
  double ns_per_page = 0;  ///< beside the bytes
};

/// Pages of two memories, in an order that no prefetcher guesses.
struct CopyProbe {
  struct Page {
    std::byte* to;
    const std::byte* from;
  };
  std::vector<Page> pages;
  std::size_t page_bytes = 0;
};

/// Measures a way to copy. `copy` copies all pages of a probe; false: it cannot, and the speed is 1 byte a
/// second.
[[nodiscard]] CopySpeed measure_copies(const std::function<bool(const CopyProbe&)>& copy);
/// How many times that has been done in this process: each takes milliseconds.
[[nodiscard]] unsigned copy_measurements();

/// Of copy_bytes. Any thread; the first call in the process measures.
[[nodiscard]] CopySpeed speed_of_copies();

}  // namespace headrace
