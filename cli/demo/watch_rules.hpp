// SPDX-License-Identifier: Apache-2.0
// The rules for how long a child may send nothing and how often it may die. The caller passes the time in.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>

namespace headrace::cli::demo {

/// Restarts with growing pauses. A child that ran for `long_life` resets the count of deaths.
class Restarts {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t most = 5;
  static constexpr std::chrono::seconds long_life{60};

  void started(Clock::time_point now) { started_ = now; }
  /// Counts a death. Returns when to restart the child; nullopt if it has died too often.
  std::optional<Clock::time_point> died(Clock::time_point now) {
    if (now - started_ >= long_life) deaths_ = 0;
    if (++deaths_ > most) return std::nullopt;
    return now + std::chrono::milliseconds(50) * (1 << deaths_);
  }
  [[nodiscard]] std::size_t deaths() const { return deaths_; }

 private:
  Clock::time_point started_{};
  std::size_t deaths_ = 0;
};

/// How long a child has sent nothing. Counted in steps of this process, at most `longest_step` each: time in
/// which this process itself was stopped does not count.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds longest_step{200};

  void heard() { silent_ = {}; }
  /// Counts the time from `before` to `now`.
  void pass(Clock::time_point before, Clock::time_point now) {
    silent_ += std::min<Clock::duration>(now - before, longest_step);
  }
  [[nodiscard]] Clock::duration lasts() const { return silent_; }

 private:
  Clock::duration silent_{};
};

}  // namespace headrace::cli::demo
