// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGHUP as something that can be waited for, so that a process ends in its own order.
#pragma once

#include "cli/file_descriptor.hpp"

#include <headrace/result.hpp>

namespace headrace::cli::demo {

/// Handlers, not a mask: children would inherit the mask. One object a process.
class StopSignals {
 public:
  static Result<StopSignals> open();
  StopSignals(StopSignals&&) noexcept = default;
  StopSignals& operator=(StopSignals&&) = delete;
  /// The process is about to end: a second signal ends it at once.
  ~StopSignals();

  /// Readable once one has come.
  [[nodiscard]] int event() const { return event_.get(); }
  /// The one that has come, or 0.
  [[nodiscard]] static int number();
  /// Ends this process as the signal would have, if one has come: whoever started it sees by what.
  static void pass_on();

 private:
  explicit StopSignals(FileDescriptor event) : event_(std::move(event)) {}
  FileDescriptor event_;
};

}  // namespace headrace::cli::demo
