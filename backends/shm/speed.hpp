// SPDX-License-Identifier: Apache-2.0
// How fast this machine copies, measured once when it is first asked for: some milliseconds' work in all.
#pragma once

#include <mutex>
#include <optional>

namespace headrace::shm {

/// One thread, pages of 4 KiB at random, memory larger than the private caches.
struct CopySpeed {
  double bytes_per_second = 1;
  double ns_per_page = 0;  ///< beside the bytes
};

class SpeedMeter {
 public:
  /// Between mapped memory. Any thread; the first call measures.
  [[nodiscard]] CopySpeed mapped();
  /// By cross-memory attach, tried on our own process.
  [[nodiscard]] CopySpeed attached();

 private:
  std::mutex mutex_;
  std::optional<CopySpeed> mapped_;
  std::optional<CopySpeed> attached_;
};

}  // namespace headrace::shm
