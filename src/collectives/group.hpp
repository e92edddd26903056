// SPDX-License-Identifier: Apache-2.0
// Calls that end as one work: a batch, or coalesced calls.
#pragma once

#include "collectives/work_state.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace headrace::collectives {

/// Ends its work when all members have ended, with the first of their errors. By then none of them touches
/// memory.
///   threads  members end on any
class Group : public std::enable_shared_from_this<Group> {
 public:
  explicit Group(std::shared_ptr<Work::State> work) : work_(std::move(work)) {}

  [[nodiscard]] CommCallId id() const { return work_->call().id(); }
  void add(const Work& member);
  /// A member could not begin.
  void refuse(const Error& error);
  /// All members have been added.
  void seal() { one_ended({}); }

 private:
  void one_ended(std::optional<Error> error);

  const std::shared_ptr<Work::State> work_;
  std::mutex mutex_;
  std::size_t left_ = 1;  // members, and the seal
  std::optional<Error> first_error_;
};

}  // namespace headrace::collectives
