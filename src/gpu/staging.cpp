// SPDX-License-Identifier: Apache-2.0
#include "gpu/staging.hpp"

#include <utility>

namespace headrace::gpu {

Staging::~Staging() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return running_ == 0; });
}

bool Staging::submit(std::shared_ptr<Work> work) {
  {
    const std::scoped_lock lock(mutex_);
    if (running_ == width()) {
      waiting_.push_back(std::move(work));
      return true;
    }
    ++running_;
  }
  auto task = std::make_unique<Task>(*this, std::move(work));
  if (host_.submit<&Task::run>(task.get())) {
    (void)task.release();
    return true;
  }
  // What has begun to wait meanwhile is left to those that run; if there are none, it must run here.
  std::shared_ptr<Work> left;
  {
    const std::scoped_lock lock(mutex_);
    if (running_ == 1 && !waiting_.empty()) {
      left = std::move(waiting_.front());
      waiting_.pop_front();
    } else {
      --running_;
      idle_.notify_all();
    }
  }
  if (left != nullptr) run(std::move(left));
  return false;
}

void Staging::run(std::shared_ptr<Work> work) {
  while (work != nullptr) {
    auto lane = take_lane(work->device());
    if (lane)
      work->run(**lane);
    else
      work->refused(lane.error());
    work.reset();
    const std::scoped_lock lock(mutex_);
    if (lane) free_.push_back(std::move(*lane));
    if (waiting_.empty()) {
      --running_;
      idle_.notify_all();  // under the lock: nothing of this is touched once it is let go of
      return;
    }
    work = std::move(waiting_.front());
    waiting_.pop_front();
  }
}

Result<std::unique_ptr<Staging::Lane>> Staging::take_lane(const std::shared_ptr<const Device>& device) {
  {
    const std::scoped_lock lock(mutex_);
    if (!free_.empty()) {
      auto lane = std::move(free_.back());
      free_.pop_back();
      return lane;
    }
  }
  HEADRACE_TRY(memory, PinnedMemory::allocate(device, slots_a_lane * slot_bytes_));
  return std::make_unique<Lane>(std::move(memory), slot_bytes_);
}

}  // namespace headrace::gpu
