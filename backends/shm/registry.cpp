// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/registry.hpp"

#include <algorithm>

namespace headrace::shm {

void Registry::add(std::shared_ptr<Link> link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(std::move(link));
  version_.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<Link> Registry::remove(const Link* link) {
  const std::lock_guard lock(mutex_);
  const auto at =
      std::find_if(links_.begin(), links_.end(), [&](const auto& one) { return one.get() == link; });
  if (at == links_.end()) return nullptr;
  std::shared_ptr<Link> found = std::move(*at);
  links_.erase(at);
  version_.fetch_add(1, std::memory_order_release);
  return found;
}

void Registry::introduce(Link& link) {
  const std::lock_guard lock(mutex_);
  link.introduce(memory_);
}

void Registry::look(std::uint64_t& version, std::vector<std::shared_ptr<Link>>& links) const {
  if (version_.load(std::memory_order_acquire) == version) return;
  std::vector<std::shared_ptr<Link>>
      before;  // let go outside the lock: the last one to hold a link closes its descriptors
  const std::lock_guard lock(mutex_);
  before.swap(links);
  links = links_;
  version = version_.load(std::memory_order_relaxed);
}

void Registry::share(SharedMemory memory) {
  const std::lock_guard lock(mutex_);
  for (const auto& link : links_) link->share(memory);
  memory_.push_back(std::move(memory));
}

void Registry::unshare(std::uint32_t region_id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(memory_, [&](const SharedMemory& memory) { return memory.region.region_id == region_id; });
  for (const auto& link : links_) link->unshare(region_id);
}

}  // namespace headrace::shm
