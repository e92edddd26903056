// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/lanes/link_lanes.hpp"

#include "base/clock.hpp"

namespace headrace::shm {
namespace {

constexpr std::uint64_t after_no_answer_ns = 50'000'000;  // its pool is busy, perhaps with reads of its own
constexpr std::uint64_t after_stall_ns = 1'000'000'000;   // it is stopped, or does not serve lanes

}  // namespace

bool LinkLanes::open() const { return now_ns() >= closed_until_ns_.load(std::memory_order_relaxed); }

std::unique_ptr<ReaderLane> LinkLanes::take() {
  if (!open()) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto lane = std::move(free_.back());
      free_.pop_back();
      return lane;
    }
  }
  UniqueFd file;
  auto memory = LaneMemory::create(file);
  if (!memory) return nullptr;  // no descriptor or no memory: attach needs neither
  auto lane = std::make_unique<ReaderLane>();
  lane->file = std::move(file);
  lane->reader = std::make_unique<LaneReader>(std::move(memory).value());
  const std::lock_guard lock(mutex_);
  lane->id = next_id_++;
  return lane;
}

std::unique_ptr<ReaderLane> LinkLanes::give_back(std::unique_ptr<ReaderLane> lane, bool not_its_fault) {
  const LaneReader::State state = lane->reader->state();
  if (state != LaneReader::State::good && !not_its_fault) {
    closed_until_ns_.store(
        now_ns() + (state == LaneReader::State::spoiled ? after_stall_ns : after_no_answer_ns),
        std::memory_order_relaxed);
  }
  if (state == LaneReader::State::spoiled) return lane;
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(lane));
  return nullptr;
}

void LinkLanes::clear() {
  const std::lock_guard lock(mutex_);
  free_.clear();
}

}  // namespace headrace::shm
