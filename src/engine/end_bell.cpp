// SPDX-License-Identifier: Apache-2.0
#include "engine/end_bell.hpp"

#include "engine/engine.hpp"
#include "engine/transfer.hpp"

namespace headrace::engine {

void EndBell::on_done(std::function<void(Status)> done, const std::atomic<RequestState>& state,
                      std::uint64_t post) {
  const std::lock_guard lock(mutex_);
  done_ = std::move(done);
  set_in_ = post;
  listened_to_.store(done_ != nullptr || event_fd_.has_value());
  set_after_end_ = has_ended(state.load());
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

void EndBell::ring(Engine& engine, Status status, std::atomic<RequestState>& state, RequestState to,
                   std::uint64_t post) {
  auto done = listened_to_.load() ? listener() : nullptr;  // now: who sees the end may ask for another
  state.store(to);
  // Looked at once more, after the end (both seq_cst): whoever began to listen meanwhile and saw none relies
  // on being told.
  if (listened_to_.load()) ring_late(done, post);
  if (done) engine.callback([done = std::move(done), status] { done(status); });
  engine.progress().event();
}

std::function<void(Status)> EndBell::listener() {
  const std::lock_guard lock(mutex_);
  return done_;
}

/// What is told once the end can be seen. `done`: who listened before. By now another post may be under way,
/// and listened to.
void EndBell::ring_late(std::function<void(Status)>& done, std::uint64_t post) {
  const std::lock_guard lock(mutex_);
  if (event_fd_) event_fd_->signal();
  if (!done && !set_after_end_ && set_in_ == post) done = done_;
}

}  // namespace headrace::engine
