// SPDX-License-Identifier: Apache-2.0
#include "engine/end_bell.hpp"

namespace headrace::engine {

void EndBell::on_done(std::function<void(Status)> done, const PostLife& life) {
  const std::lock_guard lock(mutex_);
  done_ = std::move(done);
  listened_to_.store(done_ != nullptr || event_fd_.has_value());
  const PostLife::Now now = life.now();
  set_in_ = now.post;
  set_after_end_ = has_ended(now.state);
}

Result<int> EndBell::event_fd() {
  const std::lock_guard lock(mutex_);
  if (!event_fd_) {
    HEADRACE_TRY(made, EventFd::create());
    event_fd_.emplace(std::move(made));
    listened_to_.store(true);
  }
  return event_fd_->fd();
}

void EndBell::ring(CallbackQueue& callbacks, Progress& progress, Status status, PostLife& life,
                   RequestState to) {
  auto done = listened_to_.load() ? listener() : nullptr;  // now: a caller that sees the end may set another
  const std::uint64_t post = life.post();
  life.set(to);
  // Looked at once more, after the end (both seq_cst): a caller that began to listen meanwhile and saw no end
  // relies on being told.
  if (listened_to_.load()) ring_late(done, post);
  if (done) callbacks.push([done = std::move(done), status] { done(status); });
  progress.event();
}

std::function<void(Status)> EndBell::listener() {
  const std::lock_guard lock(mutex_);
  return done_;
}

/// What is told once the end can be seen. `done`: the listener before. By now another post may be under way,
/// and listened to.
void EndBell::ring_late(std::function<void(Status)>& done, std::uint64_t post) {
  const std::lock_guard lock(mutex_);
  if (event_fd_) event_fd_->signal();
  if (!done && !set_after_end_ && set_in_ == post) done = done_;
}

}  // namespace headrace::engine
