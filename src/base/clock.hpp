// SPDX-License-Identifier: Apache-2.0
// Monotonic time: a number of nanoseconds, a deadline, and a clock that tests move.
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace headrace {

/// CLOCK_MONOTONIC in nanoseconds. All processes of a host read the same clock; another host's clock differs.
inline std::uint64_t now_ns() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

/// A source of time that tests can replace, so that they do not wait. Implementations are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic nanoseconds; never smaller than what an earlier call returned.
  [[nodiscard]] virtual std::uint64_t now_ns() const noexcept = 0;
};

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] std::uint64_t now_ns() const noexcept override { return headrace::now_ns(); }
};

/// A clock that stands still until a test advances it. Starts at 1 s, so that a test may subtract a
/// short time without wrapping below zero.
class FakeClock final : public Clock {
 public:
  [[nodiscard]] std::uint64_t now_ns() const noexcept override {
    return now_.load(std::memory_order_acquire);
  }
  void advance(std::chrono::nanoseconds by) noexcept {
    now_.fetch_add(static_cast<std::uint64_t>(by.count()), std::memory_order_acq_rel);
  }

 private:
  std::atomic<std::uint64_t> now_ = 1'000'000'000;
};

/// A point on the monotonic clock by which a wait ends. Copy it down a call chain instead of recomputing
/// timeouts.
class Deadline {
 public:
  [[nodiscard]] static constexpr Deadline never() noexcept { return Deadline(never_ns); }
  [[nodiscard]] static constexpr Deadline at_ns(std::uint64_t point_ns) noexcept {
    return Deadline(point_ns);
  }
  [[nodiscard]] static Deadline at(std::chrono::steady_clock::time_point point) noexcept {
    // libstdc++'s and libc++'s steady_clock is CLOCK_MONOTONIC.
    const auto since_epoch =
        std::chrono::duration_cast<std::chrono::nanoseconds>(point.time_since_epoch()).count();
    return Deadline(since_epoch < 0 ? 0 : static_cast<std::uint64_t>(since_epoch));
  }
  /// `wait` from now on. A negative wait has passed already; an enormous one never passes.
  [[nodiscard]] static Deadline after(std::chrono::nanoseconds wait) noexcept {
    return after(wait, now_ns());
  }
  /// For a caller that has read the clock already.
  [[nodiscard]] static Deadline after(std::chrono::nanoseconds wait, std::uint64_t now) noexcept {
    // A count of nanoseconds is at most 2^63 - 1 and so is the clock's: the sum fits in 64 unsigned bits.
    return Deadline(wait.count() <= 0 ? now : now + static_cast<std::uint64_t>(wait.count()));
  }
  [[nodiscard]] static Deadline after(std::chrono::nanoseconds wait, const Clock& clock) noexcept {
    return after(wait, clock.now_ns());
  }

  [[nodiscard]] constexpr bool is_never() const noexcept { return point_ns_ == never_ns; }
  [[nodiscard]] bool expired() const noexcept { return !is_never() && now_ns() >= point_ns_; }
  [[nodiscard]] bool expired(const Clock& clock) const noexcept {
    return !is_never() && clock.now_ns() >= point_ns_;
  }

  /// Nanoseconds until the point; 0 once it has passed; the largest number for never.
  [[nodiscard]] std::uint64_t remaining_ns() const noexcept { return is_never() ? never_ns : left(now_ns()); }
  [[nodiscard]] std::uint64_t remaining_ns(const Clock& clock) const noexcept {
    return is_never() ? never_ns : left(clock.now_ns());
  }

  /// The point itself, as now_ns() counts; the largest number for never.
  [[nodiscard]] constexpr std::uint64_t point_ns() const noexcept { return point_ns_; }
  /// The same for waits of the standard library. Never is about a hundred years after the clock's start.
  [[nodiscard]] std::chrono::steady_clock::time_point time_point() const noexcept {
    constexpr std::uint64_t century_ns = 100ULL * 365 * 24 * 3600 * 1'000'000'000;
    const auto point = static_cast<std::int64_t>(point_ns_ < century_ns ? point_ns_ : century_ns);
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(point));
  }

  [[nodiscard]] static constexpr Deadline earliest(Deadline a, Deadline b) noexcept {
    return a.point_ns_ <= b.point_ns_ ? a : b;
  }
  friend constexpr auto operator<=>(const Deadline&, const Deadline&) = default;

 private:
  static constexpr std::uint64_t never_ns = ~std::uint64_t{0};

  constexpr explicit Deadline(std::uint64_t point_ns) noexcept : point_ns_(point_ns) {}
  [[nodiscard]] std::uint64_t left(std::uint64_t now) const noexcept {
    return now >= point_ns_ ? 0 : point_ns_ - now;
  }

  std::uint64_t point_ns_;
};

}  // namespace headrace
