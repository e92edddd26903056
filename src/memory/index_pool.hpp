// SPDX-License-Identifier: Apache-2.0
// Index vectors of requests that have ended, kept for those that come: memory that the allocator has given
// back to the system costs a page fault for every 4 KiB when it is written again, more than the copying of
// the indices.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace headrace {

class IndexPool {
 public:
  /// A vector of `count` indices of any value.
  std::vector<std::uint32_t> take(std::size_t count) {
    std::vector<std::uint32_t> indices;
    {
      const std::lock_guard lock(mutex_);
      if (!kept_.empty()) {
        indices = std::move(kept_.back());
        kept_.pop_back();
      }
    }
    indices.resize(count);
    return indices;
  }

  void give(std::vector<std::uint32_t>&& indices) {
    if (indices.capacity() < least_kept || indices.capacity() > most_indices) return;
    const std::lock_guard lock(mutex_);
    if (kept_.size() < most_kept) kept_.push_back(std::move(indices));
  }

 private:
  static constexpr std::size_t least_kept = 1024;  // smaller ones cost no page faults
  static constexpr std::size_t most_indices = 1 << 20;
  static constexpr std::size_t most_kept = 8;

  std::mutex mutex_;
  std::vector<std::vector<std::uint32_t>> kept_;
};

}  // namespace headrace
