// SPDX-License-Identifier: Apache-2.0
#include "compat/comm_future.hpp"

#include <utility>

namespace headrace::compat {

const char* commResultToString(commResult_t result) noexcept {
  switch (result) {
    case commSuccess:
      return "commSuccess";
    case commUnhandledCudaError:
      return "commUnhandledCudaError";
    case commSystemError:
      return "commSystemError";
    case commInternalError:
      return "commInternalError";
    case commInvalidArgument:
      return "commInvalidArgument";
    case commInvalidUsage:
      return "commInvalidUsage";
    case commRemoteError:
      return "commRemoteError";
    case commInProgress:
      return "commInProgress";
    case commTimeout:
      return "commTimeout";
    case commUserAbort:
      return "commUserAbort";
    case commNumResults:
      break;
  }
  return "Unknown";
}

// --- the state

void CommFuture::State::end(commResult_t result) {
  std::function<void(commResult_t)> done;
  {
    const std::scoped_lock lock(mutex_);
    if (result_) return;
    result_ = result;
    done = std::exchange(done_, {});
    ended_.notify_all();
  }
  if (done) done(result);
}

std::optional<commResult_t> CommFuture::State::result() const {
  const std::scoped_lock lock(mutex_);
  return result_;
}

commResult_t CommFuture::State::wait() const {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return result_.has_value(); });
  return *result_;
}

bool CommFuture::State::wait_for(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, timeout, [this] { return result_.has_value(); });
}

void CommFuture::State::on_ready(std::function<void(commResult_t)> done) {
  std::unique_lock lock(mutex_);
  if (!result_) {
    done_ = std::move(done);
    return;
  }
  const commResult_t result = *result_;
  lock.unlock();
  done(result);
}

// --- the handle

CommFuture::CommFuture(commResult_t result) : state_(std::make_shared<State>()) { state_->end(result); }

commResult_t CommFuture::get() const { return state_->wait(); }
bool CommFuture::wait(std::chrono::milliseconds timeout) const { return state_->wait_for(timeout); }
bool CommFuture::isReady() const { return state_->result().has_value(); }
void CommFuture::onReady(std::function<void(commResult_t)> done) const { state_->on_ready(std::move(done)); }

}  // namespace headrace::compat
