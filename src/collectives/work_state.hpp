// SPDX-License-Identifier: Apache-2.0
// The life of one operation that the caller does not wait for in the call itself.
#pragma once

#include "base/clock.hpp"
#include "base/futex.hpp"
#include "base/interrupt.hpp"

#include <headrace/comm.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace headrace::collectives {

/// An operation as errors name it, and when it is late.
struct Call {
  CommOperation operation = CommOperation::barrier;
  std::uint64_t number = 0;
  CommCallId group = {};  ///< the batch that it belongs to; number 0: none
  Timeout timeout = forever;
  Deadline deadline = Deadline::never();
  std::atomic<int>* awaited = nullptr;  ///< where to note the rank that is waited for; may be null
  /// A rank that was gone at the last look. What it sent before is seen by the look that follows.
  mutable int gone = -1;
  mutable bool end_seen = false;  ///< the same of the communicator's end
  /// Whether it goes on without a rank that is gone, until all others have come or are late.
  bool waits_for_all = false;
  mutable Interrupt interrupt = {};  ///< set while the caller's own thread runs the operation
  std::uint64_t table_work = 0;      ///< the number by which a backend that is a table knows its work
  std::uint64_t window = 0;          ///< whose operation it is, if a backend that is a table carries it out

  [[nodiscard]] CommCallId id() const { return {operation, number}; }
};

[[nodiscard]] inline Deadline deadline_of(Timeout timeout) {
  return timeout ? Deadline::after(*timeout) : Deadline::never();
}
/// Until a deadline, as calls take it.
[[nodiscard]] inline Timeout time_left(Deadline deadline) {
  if (deadline.is_never()) return forever;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(deadline.remaining_ns()));
}
/// The same error, with rank, operation, number and communicator before it.
[[nodiscard]] Error described(const Comm::Core& core, const Call& call, Error error);

}  // namespace headrace::collectives

namespace headrace {

/// Ends once. The thread that runs the operation ends it; any
/// thread reads it.
class Work::State {
 public:
  State(std::shared_ptr<Comm::Core> core, const collectives::Call& call, std::shared_ptr<const void> owner);

  [[nodiscard]] const collectives::Call& call() const { return call_; }
  [[nodiscard]] const std::shared_ptr<Comm::Core>& core() const { return core_; }
  [[nodiscard]] int awaited() const { return awaited_.load(std::memory_order_relaxed); }
  void await(int rank) { awaited_.store(rank, std::memory_order_relaxed); }

  void begin() { status_.store(word(WorkStatus::in_progress), std::memory_order_release); }
  void end(Result<void> result);
  /// With an error that names an operation already; Code::ok: it ended well.
  void end_described(Error error);
  void on_end(std::function<void()> callback);
  /// A work that this one ends with. It is kept until this one ends.
  void add_part(const Work& part);
  /// None: it has no parts, or has ended.
  [[nodiscard]] std::vector<Work> parts() const;
  void set_source(int rank) { source_ = rank; }  // before the end

  [[nodiscard]] WorkStatus status() const {
    return static_cast<WorkStatus>(status_.load(std::memory_order_acquire));
  }
  [[nodiscard]] bool ended() const { return status() > WorkStatus::in_progress; }
  /// Sleeps until the status changes.
  void sleep(Deadline deadline) const {
    const std::uint32_t seen = status_.load(std::memory_order_acquire);
    if (seen <= word(WorkStatus::in_progress))
      static_cast<void>(futex_wait(status_, seen, deadline));  // the caller looks again
  }
  [[nodiscard]] const Error& error() const { return error_; }  // once it has ended
  [[nodiscard]] int source() const { return source_; }         // once it has ended

 private:
  static std::uint32_t word(WorkStatus status) { return static_cast<std::uint32_t>(status); }

  const std::shared_ptr<Comm::Core> core_;
  collectives::Call call_;
  std::atomic<int> awaited_{-1};
  std::atomic<std::uint32_t> status_{0};
  Error error_{Code::ok, {}};
  int source_ = -1;
  std::shared_ptr<const void> owner_;
  mutable std::mutex mutex_;  // for what follows
  std::vector<std::function<void()>> callbacks_;
  std::vector<Work> parts_;
};

}  // namespace headrace
