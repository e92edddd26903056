// SPDX-License-Identifier: Apache-2.0
#include "gpu/replay_watch.hpp"

#include <algorithm>
#include <utility>

namespace headrace::gpu {

std::shared_ptr<ReplayWatch> ReplayWatch::start(Posts& posts, const WorkingGpu& gpu, const GraphMove& move,
                                                Listener& listener) {
  std::shared_ptr<ReplayWatch> watch(new ReplayWatch(posts, gpu, move, listener));
  watch->listed_ = watch;
  posts.add(*watch);
  return watch;
}

std::uint32_t ReplayWatch::untold() const {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(move_.replays() - told_.load(), UINT32_MAX));
}

void ReplayWatch::tell() {
  const std::uint32_t count = untold();
  if (count == 0) return;
  told_.fetch_add(count);
  listener_.replays_ended(count);
}

/// Posts has taken it off its list: tells, and goes back there.
void ReplayWatch::ended(Result<void> /*outcome*/) {
  std::shared_ptr<ReplayWatch> last;  // after a stop nobody else may have it
  std::unique_lock lock(mutex_);
  if (!stopped_) {
    telling_ = true;
    lock.unlock();
    tell();
    lock.lock();
    telling_ = false;
    quiet_.notify_all();
  }
  if (stopped_)
    last = std::move(listed_);
  else
    posts_.add(*this);
  lock.unlock();
}

void ReplayWatch::stop() {
  {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    quiet_.wait(lock, [this] { return !telling_; });
  }
  tell();
  if (posts_.remove(*this)) listed_.reset();  // else the thread that has it lets go
}

}  // namespace headrace::gpu
