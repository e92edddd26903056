// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/lanes/served_regions.hpp"

#include <sched.h>

namespace headrace::shm {

void ServedRegions::add(LocalRegion& region) {
  const std::lock_guard lock(mutex_);
  by_id_.emplace(region.region_id, &region);
}

void ServedRegions::remove(LocalRegion& region) {
  withdraw(region.region_id);
  region.gone.store(true, std::memory_order_release);
  while (region.copied_out_of.load(std::memory_order_acquire) != 0) ::sched_yield();
}

void ServedRegions::withdraw(std::uint32_t region_id) {
  const std::lock_guard lock(mutex_);
  by_id_.erase(region_id);
}

ServedRegions::Pin ServedRegions::pin(std::uint32_t region_id) {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(region_id);
  if (at == by_id_.end()) return {};
  at->second->copied_out_of.fetch_add(1, std::memory_order_relaxed);
  return Pin(at->second);
}

}  // namespace headrace::shm
