// SPDX-License-Identifier: Apache-2.0
#include "engine/end_bell.hpp"

namespace headrace::engine {

void EndBell::on_done(std::function<void(Status)> done, const PostLife& life) {
  const std::lock_guard lock(mutex_);
  done_ = std::move(done);
  update_listened_to();
  const PostLife::Now now = life.now();
  set_in_ = now.post;
  set_after_end_ = has_ended(now.state);
}

Result<int> EndBell::event_fd() {
  const std::lock_guard lock(mutex_);
  if (!event_fd_) {
    HEADRACE_TRY(made, EventFd::create());
    event_fd_.emplace(std::move(made));
    update_listened_to();
  }
  return event_fd_->fd();
}

void EndBell::enqueue(const std::shared_ptr<CompletedNumbers>& queue, std::uint64_t number,
                      const PostLife& life) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t post = life.now().post;
  queued_.push_back({queue, number, post});
  update_listened_to();
  // Looked at after that (both seq_cst): either `ring` finds the entry, or the end is seen here.
  const PostLife::Now now = life.now();
  if (now.post != post || has_ended(now.state)) push_queued(post);
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

void EndBell::taken_back() {
  if (!listened_to_.load()) return;
  const std::lock_guard lock(mutex_);
  push_queued(UINT64_MAX);
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
  push_queued(post);
}

/// Those of this post and earlier ones. `mutex_` is held.
void EndBell::push_queued(std::uint64_t up_to_post) {
  if (queued_.empty()) return;
  std::erase_if(queued_, [&](const Queued& one) {
    if (one.post > up_to_post) return false;
    if (const auto queue = one.queue.lock()) queue->push(one.number);
    return true;
  });
  update_listened_to();
}

/// `mutex_` is held.
void EndBell::update_listened_to() {
  listened_to_.store(done_ != nullptr || event_fd_.has_value() || !queued_.empty());
}

}  // namespace headrace::engine
