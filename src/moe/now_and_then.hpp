// SPDX-License-Identifier: Apache-2.0
// What is done a few times a second while a rank waits, and not at the first look of a wait: most are short.
#pragma once

#include <cstdint>

namespace headrace::moe {

class NowAndThen {
 public:
  explicit NowAndThen(std::uint64_t interval_ns) : interval_ns_(interval_ns) {}

  /// Whether it is done at this look. A look that is late is the first one of a wait, or that of a thread
  /// that has not run for long: of two such looks in a row the second one counts.
  [[nodiscard]] bool is_due(std::uint64_t now_ns) {
    if (now_ns < next_ns_) return false;
    const bool is_late = now_ns > next_ns_ + interval_ns_;
    next_ns_ = now_ns + interval_ns_;
    skipped_ = is_late && !skipped_;
    return !skipped_;
  }

 private:
  const std::uint64_t interval_ns_;
  std::uint64_t next_ns_ = 0;
  bool skipped_ = false;
};

}  // namespace headrace::moe
