// SPDX-License-Identifier: Apache-2.0
#include "engine/transfer.hpp"

#include "engine/call_gate.hpp"

namespace headrace::engine {

bool Transfer::begin(RequestState& before, std::uint64_t posted_ns) {
  if (!life_.begin(before)) return false;
  posted_at_ns_.store(posted_ns, std::memory_order_relaxed);
  ended_at_ns_.store(0, std::memory_order_relaxed);
  return true;
}

/// A small post has ended by now: looking at the clock once more would cost it a tenth of its time.
void Transfer::leave_post() {
  const std::uint64_t ended_at = ended_at_ns_.load(std::memory_order_relaxed);
  post_ns_.store((ended_at != 0 ? ended_at : now_ns()) - posted_at_ns_.load(std::memory_order_relaxed),
                 std::memory_order_relaxed);
}

RequestState Transfer::poll() {
  if (ended() || context_.calls.forked()) return state();
  (void)help();
  if (!ended()) (void)context_.progress.poll();
  return state();
}

Status Transfer::wait(Timeout timeout) {
  const RequestState now = state();
  if (now == RequestState::prepared || now == RequestState::captured) return {Code::invalid_argument};
  if (!has_ended(now)) {
    if (context_.calls.forked()) return {Code::invalid_argument};
    if (!context_.progress.wait([this] { return ended(); }, [this] { return help(); },
                                context_.progress.deadline_in(timeout)))
      return {Code::timed_out};
  }
  return outcome();
}

Status Transfer::outcome() const {
  const std::lock_guard lock(outcome_mutex_);
  return status_;
}

void Transfer::finish(Status status, std::uint64_t ended_ns) {
  ended_at_ns_.store(ended_ns, std::memory_order_relaxed);
  bell_.ring(context_.callbacks, context_.progress, status, life_, state_after(status));
}

RequestTimes Transfer::times() const {
  RequestTimes t;
  t.posted_at_ns = posted_at_ns_.load(std::memory_order_relaxed);
  t.post_ns = post_ns_.load(std::memory_order_relaxed);
  const std::uint64_t ended_at = ended_at_ns_.load(std::memory_order_relaxed);
  t.transfer_ns = ended_at > t.posted_at_ns ? ended_at - t.posted_at_ns : 0;
  t.bytes = shape_.bytes;
  t.pages = shape_.pages;
  t.posts = life_.post();
  return t;
}

}  // namespace headrace::engine
