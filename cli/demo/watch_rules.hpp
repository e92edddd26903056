// SPDX-License-Identifier: Apache-2.0
// How long a child may be silent, and how often it may die. Time comes in from outside.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>

namespace headrace::cli::demo {

/// Restarts with growing pauses. A life that was long makes good for those before it.
class Restarts {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t most = 5;
  static constexpr std::chrono::seconds long_life{60};

  void started(Clock::time_point now) { started_ = now; }
  /// It has died. When it is to start again; nothing when it has died too often.
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

/// Silence, counted in steps of our own: while we ourselves are stopped nobody is silent.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds longest_step{200};

  void heard() { silent_ = {}; }
  /// Time has gone on since `before`.
  void pass(Clock::time_point before, Clock::time_point now) {
    silent_ += std::min<Clock::duration>(now - before, longest_step);
  }
  [[nodiscard]] Clock::duration lasts() const { return silent_; }

 private:
  Clock::duration silent_{};
};

}  // namespace headrace::cli::demo
