// SPDX-License-Identifier: Apache-2.0
#include "compat/staged_gate.hpp"

namespace headrace::compat {

void StagedGate::signal() {
  const std::scoped_lock lock(mutex_);
  ++signals_;
  changed_.notify_all();
}

commResult_t StagedGate::take(std::chrono::milliseconds timeout, std::uint64_t transfer) {
  std::unique_lock lock(mutex_);
  const auto canceled = [&] { return transfer <= canceled_up_to_; };
  changed_.wait_for(lock, timeout, [&] { return signals_ != 0 || canceled() || stopped_ || lost_; });
  if (stopped_) return commUserAbort;
  if (signals_ != 0) {
    --signals_;
    return commSuccess;
  }
  if (lost_) return commInternalError;
  last_error_ = canceled() ? "the transfer was canceled" : "the other side did nothing within chunkTimeout";
  return canceled() ? commUserAbort : commTimeout;
}

std::uint64_t StagedGate::begin() {
  const std::scoped_lock lock(mutex_);
  return ++begun_;
}

void StagedGate::cancel() {
  const std::scoped_lock lock(mutex_);
  canceled_up_to_ = begun_;
  changed_.notify_all();
}

void StagedGate::stop() {
  const std::scoped_lock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void StagedGate::lose(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  if (!lost_) last_error_ = why;
  lost_ = true;
  changed_.notify_all();
}

void StagedGate::note(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  if (!lost_) last_error_ = why;
}

bool StagedGate::stopped() const {
  const std::scoped_lock lock(mutex_);
  return stopped_;
}

bool StagedGate::lost() const {
  const std::scoped_lock lock(mutex_);
  return lost_;
}

std::string StagedGate::last_error() const {
  const std::scoped_lock lock(mutex_);
  return last_error_;
}

}  // namespace headrace::compat
