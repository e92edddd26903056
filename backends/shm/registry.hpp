// SPDX-License-Identifier: Apache-2.0
// The links of an instance and the memory that their peers map. One lock, so that a link that comes up while
// memory is being registered hears of each region once at least.
#pragma once

#include "backends/shm/link.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::shm {

/// Any thread.
class Registry {
 public:
  /// Never 0, never used twice.
  [[nodiscard]] std::uint32_t next_serial() { return next_serial_.fetch_add(1, std::memory_order_relaxed); }

  void add(std::shared_ptr<Link> link);
  /// The link, if it was there; from then on the progress thread does not see it at its next look.
  std::shared_ptr<Link> remove(const Link* link);
  /// Tells the peer who we are and what it may map; what comes and goes later follows by itself.
  void introduce(Link& link);
  /// Copies the list if it has changed since `version`.
  void look(std::uint64_t& version, std::vector<std::shared_ptr<Link>>& links) const;

  void share(SharedMemory memory);
  void unshare(std::uint32_t region_id);

 private:
  std::atomic<std::uint32_t> next_serial_{1};
  std::atomic<std::uint64_t> version_{1};
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Link>> links_;
  std::vector<SharedMemory> memory_;
};

}  // namespace headrace::shm
