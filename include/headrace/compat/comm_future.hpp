// SPDX-License-Identifier: Apache-2.0
// Results of transports by torchcomms' names, and the future that brings one.
#pragma once

#include <headrace/result.hpp>

#include <chrono>
#include <functional>
#include <memory>

namespace headrace::compat {

// NOLINTBEGIN(readability-identifier-naming): the names are torchcomms'

/// With torchcomms' numbers.
enum commResult_t : int {
  commSuccess = 0,
  commUnhandledCudaError = 1,
  commSystemError = 2,
  commInternalError = 3,
  commInvalidArgument = 4,
  commInvalidUsage = 5,
  commRemoteError = 6,
  commInProgress = 7,
  commTimeout = 8,
  commUserAbort = 9,
  commNumResults = 10,
};

/// "commTimeout".
[[nodiscard]] HEADRACE_API const char* commResultToString(commResult_t result) noexcept;

/// What an operation of a transport becomes. A handle, cheap to copy; the operation goes on without handles.
///   threads  any
class CommFuture {
 public:
  class State;

  /// A future that has ended.
  HEADRACE_API CommFuture(commResult_t result);
  explicit CommFuture(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Waits for the end.
  [[nodiscard]] HEADRACE_API commResult_t get() const;
  /// Waits so long. Returns whether it has ended.
  [[nodiscard]] HEADRACE_API bool wait(std::chrono::milliseconds timeout) const;
  [[nodiscard]] HEADRACE_API bool isReady() const;
  /// Calls `done` once, on the thread that ends the operation, or at once if it has ended.
  HEADRACE_API void onReady(std::function<void(commResult_t)> done) const;

 private:
  std::shared_ptr<State> state_;
};

// NOLINTEND(readability-identifier-naming)

}  // namespace headrace::compat
