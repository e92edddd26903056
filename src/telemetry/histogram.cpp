// SPDX-License-Identifier: Apache-2.0
#include "telemetry/histogram.hpp"

#include <algorithm>

namespace headrace {

HistogramSnapshot Histogram::snapshot() const noexcept {
  HistogramSnapshot copy;
  for (std::size_t i = 0; i < copy.buckets.size(); ++i) {
    copy.buckets[i] = buckets_[i].load(std::memory_order_relaxed);
    copy.count += copy.buckets[i];
  }
  copy.sum = sum_.load(std::memory_order_relaxed);
  copy.smallest = smallest_.load(std::memory_order_relaxed);
  copy.largest = largest_.load(std::memory_order_relaxed);
  // No value yet, or a first record that has reached its bucket but not yet the extremes.
  if (copy.smallest > copy.largest) copy.smallest = copy.largest;
  return copy;
}

double HistogramSnapshot::percentile(double percent) const {
  if (count == 0) return 0;
  const auto least = static_cast<double>(smallest);
  const auto most = static_cast<double>(largest);
  const double rank = std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(count);
  double below = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const auto here = static_cast<double>(buckets[i]);
    if (here > 0 && below + here >= rank) {
      // The values of a bucket are assumed to be spread evenly over it, limited by the extremes.
      const auto lower = static_cast<double>(Histogram::lower_bound(i));
      const double from = std::max(lower, least);
      const double to = std::max(from, std::min(lower * 2, most));
      return from + (to - from) * (rank - below) / here;
    }
    below += here;
  }
  return most;
}

}  // namespace headrace
