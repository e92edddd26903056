// SPDX-License-Identifier: Apache-2.0
#include "collectives/work_state.hpp"

#include "collectives/core.hpp"

#include <utility>

namespace headrace {

Work::State::State(std::shared_ptr<Comm::Core> core, const collectives::Call& call,
                   std::shared_ptr<const void> owner)
    : core_(std::move(core)), call_(call), owner_(std::move(owner)) {
  call_.awaited = &awaited_;
}

void Work::State::end(Result<void> result) {
  end_described(result ? Error{Code::ok, {}}
                       : collectives::described(*core_, call_, std::move(result).error()));
}

void Work::State::end_described(Error error) {
  error_ = std::move(error);
  const WorkStatus status = error_.code == Code::ok          ? WorkStatus::completed
                            : error_.code == Code::timed_out ? WorkStatus::timed_out
                            : error_.code == Code::canceled  ? WorkStatus::aborted
                                                             : WorkStatus::failed;
  owner_.reset();
  core_->hooks()->completed(call_.id(), error_);
  status_.store(word(status), std::memory_order_release);
  futex_wake(status_, futex_all);
  std::vector<std::function<void()>> callbacks;
  std::vector<Work> parts;  // let go of after the lock
  {
    const std::scoped_lock lock(mutex_);
    callbacks = std::exchange(callbacks_, {});
    parts = std::exchange(parts_, {});
  }
  for (const auto& callback : callbacks) callback();
}

void Work::State::on_end(std::function<void()> callback) {
  {
    const std::scoped_lock lock(mutex_);
    if (!ended()) return callbacks_.push_back(std::move(callback));
  }
  callback();
}

void Work::State::add_part(const Work& part) {
  const std::scoped_lock lock(mutex_);
  parts_.push_back(part);
}

std::vector<Work> Work::State::parts() const {
  const std::scoped_lock lock(mutex_);
  return parts_;
}

}  // namespace headrace
