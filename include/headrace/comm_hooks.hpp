// SPDX-License-Identifier: Apache-2.0
// Functions of the caller that a communicator calls beside its operations.
#pragma once

#include <headrace/comm_call.hpp>
#include <headrace/result.hpp>

#include <cstdint>
#include <functional>
#include <memory>

namespace headrace {

class Work;

namespace collectives {
class Hooks;
}  // namespace collectives

/// What a communicator calls. Any of them may be empty. None may throw.
///   threads  `before` and `after`: the caller's, which holds no lock of the communicator: they may call it.
///   The
///            others: any, and the communicator may hold locks: they are quick and do not call it
struct CommHooks {
  /// Before an operation, once its arguments have been checked. An error refuses the call: it returns the
  /// error, and no other rank knows of it.
  std::function<Result<void>(const CommCall& call)> before = {};
  /// The operation has its number.
  std::function<void(const CommCall& call)> scheduled = {};
  /// Its turn has come: those before it have ended.
  std::function<void(const CommCallId& call)> started = {};
  /// The operation has ended; error.code is ok if it ended well. Its elements may be gone already.
  std::function<void(const CommCallId& call, const Error& error)> completed = {};
  /// The call returns, with its work or its error.
  std::function<void(const CommCall& call, const Result<Work>& result)> after = {};
  /// The communicator has ended, by an abort or an operation that failed on some rank. Once.
  std::function<void(const Error& cause)> aborted = {};
};

/// Hooks that were added to a communicator. A handle, cheap to copy. Dropping it changes nothing.
class CommHook {
 public:
  CommHook() = default;
  CommHook(std::weak_ptr<collectives::Hooks> hooks, std::uint64_t id);
  /// No call of the functions begins after it returns; one that another thread has begun may go on.
  HEADRACE_API void remove();

 private:
  std::weak_ptr<collectives::Hooks> hooks_;
  std::uint64_t id_ = 0;
};

}  // namespace headrace
