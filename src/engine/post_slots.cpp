// SPDX-License-Identifier: Apache-2.0
#include "engine/post_slots.hpp"

#include "base/errors.hpp"

namespace headrace::engine {

PostSlots::~PostSlots() {
  for (auto& chunk : chunks_) delete[] chunk.load();
}

Result<PostSlots::Hold> PostSlots::take() {
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    const std::uint32_t number = free_.back();
    free_.pop_back();
    return Hold(*this, *find(number), number);
  }
  if (used_ == chunk_slots * most_chunks)
    return make_error(Code::exhausted, "an agent has at most {} requests: let go of some", used_);
  auto& chunk = chunks_[used_ / chunk_slots];
  if (chunk.load() == nullptr) chunk.store(new Slot[chunk_slots], std::memory_order_release);
  const std::uint32_t number = used_++;
  return Hold(*this, *find(number), number);
}

void PostSlots::give_back(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  free_.push_back(number);
}

}  // namespace headrace::engine
