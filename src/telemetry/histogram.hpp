// SPDX-License-Identifier: Apache-2.0
// The distribution of a value (a latency, a size) in buckets of powers of two, cheap enough for every
// request.
#pragma once

#include <headrace/telemetry.hpp>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace headrace {

/// Thread-safe. A record is four relaxed atomic operations; two of them write only while the extremes change.
class Histogram {
 public:
  Histogram() = default;
  Histogram(const Histogram&) = delete;
  Histogram& operator=(const Histogram&) = delete;

  void record(std::uint64_t value) noexcept {
    buckets_[bucket_of(value)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
    lower(smallest_, value);
    raise(largest_, value);
  }

  /// A copy. While others record, its fields may differ by the records in flight; `count` is always the sum
  /// of the buckets.
  [[nodiscard]] HistogramSnapshot snapshot() const noexcept;

  [[nodiscard]] static constexpr std::size_t bucket_of(std::uint64_t value) noexcept {
    return static_cast<std::size_t>(std::bit_width(value));
  }
  /// The smallest value of a bucket.
  [[nodiscard]] static constexpr std::uint64_t lower_bound(std::size_t bucket) noexcept {
    return bucket == 0 ? 0 : std::uint64_t{1} << (bucket - 1);
  }

 private:
  static void lower(std::atomic<std::uint64_t>& extreme, std::uint64_t value) noexcept {
    std::uint64_t seen = extreme.load(std::memory_order_relaxed);
    while (value < seen && !extreme.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
  static void raise(std::atomic<std::uint64_t>& extreme, std::uint64_t value) noexcept {
    std::uint64_t seen = extreme.load(std::memory_order_relaxed);
    while (value > seen && !extreme.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }

  std::array<std::atomic<std::uint64_t>, HistogramSnapshot::bucket_count> buckets_{};
  std::atomic<std::uint64_t> sum_ = 0;
  std::atomic<std::uint64_t> smallest_ = ~std::uint64_t{0};
  std::atomic<std::uint64_t> largest_ = 0;
};

}  // namespace headrace
