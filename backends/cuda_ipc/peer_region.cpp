// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/peer_region.hpp"

namespace headrace::cuda_ipc {

PeerRegion::Found PeerRegion::find(int device) {
  const std::scoped_lock lock(mutex_);
  if (forgotten_) return {Reach::refused, {}, *forgotten_};
  const auto [way, is_new] = ways_.try_emplace(device);
  if (is_new) return {};
  return {way->second.reach, way->second.memory, way->second.error};
}

bool PeerRegion::awaits(int device) const {
  const std::scoped_lock lock(mutex_);
  const auto way = ways_.find(device);
  return way != ways_.end() && way->second.reach == Reach::asked;
}

void PeerRegion::answered(int device, Result<ImportedMemory> answer) {
  ImportedMemory late;  // unmapped outside the lock
  const std::scoped_lock lock(mutex_);
  if (forgotten_) {
    if (answer) late = std::move(*answer);
    return;
  }
  Way& way = ways_[device];
  way.reach = answer ? Reach::here : Reach::refused;
  if (answer)
    way.memory = std::move(*answer);
  else
    way.error = std::move(answer).error();
}

void PeerRegion::answered_by_owner(int device) {
  const std::scoped_lock lock(mutex_);
  if (!forgotten_) ways_[device].reach = Reach::by_owner;
}

void PeerRegion::forget(const Error& why) {
  std::map<int, Way> ways;  // unmapped outside the lock
  const std::scoped_lock lock(mutex_);
  if (!forgotten_) forgotten_ = why;
  ways.swap(ways_);
}

}  // namespace headrace::cuda_ipc
