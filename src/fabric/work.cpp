// SPDX-License-Identifier: Apache-2.0
#include "fabric/work.hpp"

#include "base/clock.hpp"
#include "fabric/worker.hpp"
#include "telemetry/nvtx.hpp"

#include <utility>

namespace headrace::fabric {

RequestState Work::state() const {
  if (setup.fork->forked()) return RequestState::failed;
  const std::lock_guard lock(mutex_);
  return state_;
}

Status Work::wait(Timeout timeout) {
  if (setup.fork->forked()) return {Code::invalid_argument};
  const Deadline deadline = timeout ? Deadline::after(*timeout) : Deadline::never();
  std::unique_lock lock(mutex_);
  if (deadline.is_never()) {
    changed_.wait(lock, [this] { return ended(); });
  } else if (!changed_.wait_until(lock, deadline.time_point(), [this] { return ended(); })) {
    return {Code::timed_out};
  }
  return status();
}

void Work::cancel() {
  if (setup.fork->forked()) return;
  static_cast<void>(setup.worker->push([self = shared_from_this()](Carrier& carrier) {
    carrier.cancel(*self, Error{Code::canceled, "it was canceled", no_page});
  }));
}

void Work::on_done(std::function<void(Status)> done) {
  if (setup.fork->forked()) return;
  std::unique_lock lock(mutex_);
  if (!ended()) {
    done_.swap(done);
    lock.unlock();
    return;
  }
  const Status now = status();
  lock.unlock();
  if (done) setup.callbacks->push([done = std::move(done), now] { done(now); });
}

Result<int> Work::event_fd() {
  if (setup.fork->forked())
    return make_error(Code::invalid_argument, "the fabric was opened before this process was forked");
  const std::lock_guard lock(mutex_);
  if (!bell_) {
    HEADRACE_TRY(made, EventFd::create());
    bell_ = std::move(made);
    if (ended()) bell_->signal();
  }
  return bell_->fd();
}

Error Work::error() const {
  if (setup.fork->forked())
    return make_error(Code::invalid_argument, "the fabric was opened before this process was forked");
  const std::lock_guard lock(mutex_);
  return error_;
}

void Work::canceling() {
  const std::lock_guard lock(mutex_);
  if (!ended()) state_ = RequestState::canceling;
}

void Work::end(Error error) {
  std::function<void(Status)> done;
  Status now;
  {
    const std::lock_guard lock(mutex_);
    if (ended()) return;
    error_ = std::move(error);
    state_ = RequestState::failed;
    if (error_.code == Code::ok) state_ = RequestState::done;
    if (error_.code == Code::canceled) state_ = RequestState::canceled;
    now = status();
    nvtx::end_range(run.range);
    done = std::exchange(done_, nullptr);
    if (bell_) bell_->signal();
    changed_.notify_all();
  }
  setup.worker->give_back();
  if (done) setup.callbacks->push([done = std::move(done), now] { done(now); });
}

}  // namespace headrace::fabric
