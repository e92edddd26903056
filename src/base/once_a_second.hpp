// SPDX-License-Identifier: Apache-2.0
// Whether a line may be logged that a peer can cause as often as it likes.
#pragma once

#include <atomic>
#include <cstdint>

namespace headrace {

class OnceASecond {
 public:
  /// True at most once a second, and the first time. From any thread.
  [[nodiscard]] bool due(std::uint64_t now_ns) {
    std::uint64_t last = last_ns_.load(std::memory_order_relaxed);
    if (last != 0 && now_ns - last < 1'000'000'000) return false;
    return last_ns_.compare_exchange_strong(last, now_ns == 0 ? 1 : now_ns);
  }

 private:
  std::atomic<std::uint64_t> last_ns_{0};
};

}  // namespace headrace
