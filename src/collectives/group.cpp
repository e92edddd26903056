// SPDX-License-Identifier: Apache-2.0
#include "collectives/group.hpp"

#include <utility>

namespace headrace::collectives {

void Group::add(const Work& member) {
  {
    const std::scoped_lock lock(mutex_);
    ++left_;
  }
  work_->add_part(member);
  member.on_end([group = shared_from_this(), member] {
    Error error = member.error();
    group->one_ended(error.code == Code::ok ? std::nullopt : std::optional(std::move(error)));
  });
}

void Group::refuse(const Error& error) {
  const std::scoped_lock lock(mutex_);
  if (!first_error_) first_error_ = error;
}

void Group::one_ended(std::optional<Error> error) {
  {
    const std::scoped_lock lock(mutex_);
    if (error && !first_error_) first_error_ = std::move(error);
    if (--left_ != 0) return;
  }
  work_->end_described(first_error_.value_or(Error{Code::ok, {}}));
}

}  // namespace headrace::collectives
