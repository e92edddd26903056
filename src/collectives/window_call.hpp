// SPDX-License-Identifier: Apache-2.0
// One operation of a window while it waits for a rank: it ends in time, with the communicator, when the rank
// is gone, or when the caller asks for it.
#pragma once

#include "base/errors.hpp"
#include "base/interrupt.hpp"
#include "base/waiter.hpp"
#include "collectives/members.hpp"
#include "collectives/missing_ranks.hpp"
#include "collectives/work_state.hpp"

#include <headrace/comm_call.hpp>

#include <functional>
#include <string>
#include <vector>

namespace headrace::collectives {

/// What a window uses of its communicator, which outlives it.
struct WindowComm {
  Members* members = nullptr;
  std::uint32_t spins = Waiter::few_spins;
  /// An error: the communicator has ended, and why. Makes progress with other things, too.
  std::function<Result<void>()> look = {};
  std::function<bool()> interrupted = {};  ///< asked while the caller's own thread waits
  /// Every rank gets the texts of all.
  using Gather = std::function<Result<std::vector<std::string>>(const std::string& mine)>;
  using Body = std::function<Result<void>(const Gather&)>;
  /// Runs a collective. An error of its body ends the communicator.
  std::function<Result<void>(CommOperation, const Body&)> collective = {};
  /// The error of an operation that has no number, with rank, operation, communicator and window before it.
  std::function<Error(CommOperation, Error)> refused = {};
};

/// How long an operation may take, and what else ends its waits.
struct TimeLimit {
  TimeLimit() = default;
  explicit TimeLimit(Timeout given) : timeout(given), deadline(deadline_of(given)) {}

  [[nodiscard]] std::string text() const { return duration_text(timeout); }
  /// What is left of it.
  [[nodiscard]] Timeout left() const { return time_left(deadline); }

  Timeout timeout = forever;
  Deadline deadline = Deadline::never();
  Interrupt interrupt = {};  ///< of a caller that waits itself
};

class WindowCall {
 public:
  /// `rank`: the one that it waits for.
  WindowCall(const WindowComm& comm, int rank, const TimeLimit& limit)
      : comm_(comm), rank_(rank), limit_(limit) {}

  /// Waits until `done`, which returns Result<bool>. `late` returns the text of timed_out.
  template <class Done, class Late>
  [[nodiscard]] Result<void> until(const Done& done, const Late& late) {
    Waiter waiter(comm_.spins, comm_.members->bell());
    while (true) {
      HEADRACE_TRY(ended, done());
      if (ended) return {};
      HEADRACE_TRY_VOID(waiter.pause([&] { return look(late); }));
    }
  }
  template <class Done>
  [[nodiscard]] Result<void> until(const Done& done) {
    return until(done, [this] { return no_answer(); });
  }
  /// One look between waits: an error if there is no reason to go on.
  [[nodiscard]] Result<void> look() {
    return look([this] { return no_answer(); });
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const TimeLimit& limit() const { return limit_; }
  [[nodiscard]] Error gone() const {
    return make_error(Code::peer_lost, "rank {} is gone: its process has ended, or it has left", rank_);
  }
  /// The rank lives, and its window does not.
  [[nodiscard]] Error dropped() const {
    return make_error(Code::not_found,
                      "rank {} has dropped its window: all ranks call tensor_deregister before", rank_);
  }
  /// Why the memory of the rank cannot be reached any more.
  [[nodiscard]] Error unreachable() const { return comm_.members->alive(rank_) ? dropped() : gone(); }

 private:
  [[nodiscard]] std::string no_answer() const {
    return fmt::format("rank {} has not answered within {}", rank_, limit_.text());
  }
  template <class Late>
  Result<void> look(const Late& late) {
    if (limit_.deadline.expired()) return Error{Code::timed_out, late()};
    HEADRACE_TRY_VOID(comm_.look());
    if (limit_.interrupt.asked()) return Interrupt::error();
    if (comm_.members->alive(rank_)) return {};
    if (seen_gone_) return gone();
    seen_gone_ = true;  // what it did before is seen by the look that follows
    return {};
  }

  const WindowComm& comm_;
  const int rank_;
  TimeLimit limit_;
  bool seen_gone_ = false;
};

}  // namespace headrace::collectives
