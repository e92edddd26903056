// SPDX-License-Identifier: Apache-2.0
// A copy of an agent's counters, histograms and events at one moment.
#pragma once

#include <headrace/result.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace headrace {

/// Counts of values by size. Bucket 0 counts zeros, bucket i counts values from 2^(i-1) to 2^i - 1.
struct HistogramSnapshot {
  static constexpr std::size_t bucket_count = 65;

  std::uint64_t count = 0;
  std::uint64_t sum = 0;  ///< modulo 2^64
  std::uint64_t smallest = 0;
  std::uint64_t largest = 0;
  std::array<std::uint64_t, bucket_count> buckets{};

  /// The value that `percent` of a hundred values do not exceed, interpolated inside its bucket: wrong by a
  /// factor of two at most, exact for 0 and 100. 0 if no value was counted. `percent` is limited to 0 to 100.
  [[nodiscard]] HEADRACE_API double percentile(double percent) const;
  [[nodiscard]] double mean() const {
    return count == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(count);
  }
};

/// Something that happened once: a peer joined or left, a request moved to another path.
struct EventSnapshot {
  std::uint64_t time_ns = 0;  ///< CLOCK_MONOTONIC
  std::string room;           ///< its source: "tcp", "engine"
  std::string text;
};

/// Counters, histograms and events by name. Names carry their unit: "tcp.sent_bytes", "requests.duration_ns".
struct TelemetrySnapshot {
  std::map<std::string, std::uint64_t> counters;
  std::map<std::string, HistogramSnapshot> histograms;
  std::vector<EventSnapshot> events;  ///< the latest ones, oldest first
  std::uint64_t events_dropped = 0;   ///< older events that the ring has overwritten

  /// The same as one JSON object: counters; histograms with count, sum, smallest, largest, p50, p90, p99 and
  /// the non-empty buckets by lower bound; events; events_dropped. Bytes that are not UTF-8 are replaced.
  [[nodiscard]] HEADRACE_API std::string json() const;
};

}  // namespace headrace
