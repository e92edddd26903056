// SPDX-License-Identifier: Apache-2.0
// Turns SIGINT, SIGTERM and SIGHUP into a readable descriptor, so that a process ends its parts in order.
#pragma once

#include "cli/common/file_descriptor.hpp"

#include <headrace/result.hpp>

namespace headrace::cli::demo {

/// Uses signal handlers. (Rejected: a signal mask, which children inherit.) One object a process.
class StopSignals {
 public:
  static Result<StopSignals> open();
  StopSignals(StopSignals&&) noexcept = default;
  StopSignals& operator=(StopSignals&&) = delete;
  /// Restores the default: a second signal ends the process at once.
  ~StopSignals();

  /// A descriptor that becomes readable when a signal has arrived.
  [[nodiscard]] int event() const { return event_.get(); }
  /// The signal that has arrived, or 0.
  [[nodiscard]] static int number();
  /// If a signal has arrived, ends this process by the same signal, so that its parent sees the cause.
  static void pass_on();

 private:
  explicit StopSignals(FileDescriptor event) : event_(std::move(event)) {}
  FileDescriptor event_;
};

}  // namespace headrace::cli::demo
