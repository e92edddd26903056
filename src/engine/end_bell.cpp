// SPDX-License-Identifier: Apache-2.0
#include "engine/end_bell.hpp"

#include "engine/engine.hpp"

namespace headrace::engine {

void EndBell::on_done(std::function<void(Status)> done) {
  const std::lock_guard lock(mutex_);
  done_ = std::move(done);
  listened_to_.store(done_ != nullptr || event_fd_.has_value());
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

void EndBell::ring(Engine& engine, Status status, std::atomic<RequestState>& state, RequestState to) {
  const bool tell = listened_to_.load();
  std::function<void(Status)> done;
  if (tell) {
    const std::lock_guard lock(mutex_);
    done = done_;  // now: who sees the end may ask for another
  }
  state.store(to, std::memory_order_release);
  if (tell) {
    const std::lock_guard lock(mutex_);
    if (event_fd_) event_fd_->signal();
  }
  if (done) engine.callback([done = std::move(done), status] { done(status); });
  engine.progress().event();
}

}  // namespace headrace::engine
