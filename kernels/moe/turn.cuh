// SPDX-License-Identifier: Apache-2.0
// One launch as one operation, or half of one: its number, its waits, the ranks that it leaves out, its end.
#pragma once

#include "kernels/moe/launch.cuh"
#include "kernels/moe/memory.cuh"

#include <stddef.h>

namespace headrace::kernels::moe {

__device__ __forceinline__ unsigned lane() { return threadIdx.x % warp_lanes; }
__device__ __forceinline__ unsigned warp() { return threadIdx.x / warp_lanes; }
__device__ __forceinline__ unsigned lanes_below() { return (1u << lane()) - 1; }
constexpr unsigned all_lanes = 0xffffffff;

__device__ __forceinline__ uint64_t bit_of(unsigned rank) { return uint64_t{1} << rank; }
__device__ __forceinline__ uint64_t mask_of_all(unsigned ranks) {
  return ranks == most_ranks ? ~uint64_t{0} : bit_of(ranks) - 1;
}
/// The ranks after this one, so that not all turn to the same one first.
__device__ __forceinline__ unsigned rank_after(const Common& args, unsigned i) {
  const unsigned rank = args.rank + i;
  return rank < args.window.ranks ? rank : rank - args.window.ranks;
}

/// What a thread waits for.
struct Awaited {
  unsigned peer;
  uint32_t what;     ///< HEADRACE_MOE_ROOM and so on
  uint64_t address;  ///< of a word in this rank's window
  uint64_t expected;
};

class Turn {
 public:
  /// All blocks of a launch find the same: what it reads changes at the end of a launch alone.
  __device__ Turn(const Common& args, Operation operation)
      : args_(args), operation_(operation), state_(*at<State>(args.state)) {
    const uint64_t all = mask_of_all(args.window.ranks);
    const uint64_t given = args.active == 0 ? all : look_at(args.active) & all;
    active_ = (given & ~state_.gone) | bit_of(args.rank);
    sends_ = state_.sent[operation] + 1;
    receives_ = state_.received[operation] + 1;
  }

  /// By all threads of a block. False: the launch has nothing to do, and says why: the status may have been
  /// taken when the rank learned it.
  [[nodiscard]] __device__ bool begins() const {
    __shared__ uint64_t over;
    if (threadIdx.x == 0) {
      over = look_at(state(offsetof(State, over)));
      if (over != 0) report({peer_of_over(over), 0, 0, 0}, reason_of_over(over), 0);
    }
    __syncthreads();
    return over == 0;
  }
  /// The number of what this launch sends, and of what it receives.
  [[nodiscard]] __device__ uint64_t sends() const { return sends_; }
  [[nodiscard]] __device__ uint64_t receives() const { return receives_; }
  /// At the launch's begin.
  [[nodiscard]] __device__ uint64_t active() const { return active_; }
  [[nodiscard]] __device__ bool is_active(unsigned rank) const { return (active_ & bit_of(rank)) != 0; }
  [[nodiscard]] __device__ uint64_t state(size_t offset) const { return args_.state + offset; }

  /// By any threads, each for itself. False: the peer is left out.
  [[nodiscard]] __device__ bool waits_for(const Awaited& awaited) {
    uint64_t seen = 0;
    return waits_for(awaited, seen);
  }
  ///   seen  what the word holds then
  [[nodiscard]] __device__ bool waits_for(const Awaited& awaited, uint64_t& seen) {
    uint64_t since_ns = 0;
    for (unsigned looks = 1;; ++looks) {
      seen = acquire(awaited.address);
      if (is_there(awaited, seen)) return true;
      if (looks % looks_between != 0) continue;
      since_ns = still_waits(awaited, seen, since_ns);
      if (since_ns == 0) return false;
    }
  }
  /// Leaves a rank out, and says why if nothing else has been said in this launch.
  __device__ void leave_out(const Awaited& awaited, uint64_t reason, uint64_t seen) {
    const uint64_t bit = bit_of(awaited.peer);
    if ((set_bits(state(offsetof(State, gone_now)), bit) & bit) != 0) return;
    report(awaited, reason, seen);
    const uint64_t words = args_.windows[awaited.peer] + args_.window.words_at(args_.rank);
    if (awaited.peer != args_.rank) release(words + offsetof(PeerWords, left_out), 1);
  }
  static __device__ __noinline__ void report_of(const Common& args, const Turn& turn, const Awaited& awaited,
                                                uint64_t reason, uint64_t seen);
  __device__ void report(const Awaited& awaited, uint64_t reason, uint64_t seen) const {
    report_of(args_, *this, awaited, reason, seen);
  }

  /// By all threads of the sending blocks: each sees what the others have done before.
  __device__ void meet() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      fence_gpu();
      add(state(offsetof(State, met)), 1);
      while (look_at_narrow(state(offsetof(State, met))) < args_.senders) {
        if (is_over()) break;
      }
      fence_gpu();
    }
    __syncthreads();
  }

  /// By all threads of every block, last. `tell_taken`: the place in PeerWords where others learn that this
  /// rank has taken what they sent; no_word: there is nothing to tell.
  static constexpr size_t no_word = ~size_t{0};
  __device__ void end(size_t taken) const {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
      fence_gpu();
      is_last = add(state(offsetof(State, ended)), 1) + 1 == gridDim.x;
      fence_gpu();
    }
    __syncthreads();
    if (!is_last) return;
    const uint64_t gone = look_at(state(offsetof(State, gone_now)));
    const bool tells = !is_over() && taken != no_word;  // both are read before one is needed
    __syncthreads();                                    // all have read what is set to 0
    if (threadIdx.x == block_threads - 1) close(gone);  // another warp than those that tell
    const unsigned rank = threadIdx.x;
    if (rank >= args_.window.ranks) return;
    at<State>(args_.state)->cards[rank] = 0;
    const bool is_there = is_active(rank) && (gone & bit_of(rank)) == 0;
    if (tells && is_there)
      release(args_.windows[rank] + args_.window.words_at(args_.rank) + taken, receives_);
  }

 private:
  static constexpr unsigned looks_between = 256;  // a look at host memory costs a read over PCIe

  [[nodiscard]] __device__ bool is_over() const { return look_at(state(offsetof(State, over))) != 0; }
  [[nodiscard]] static __device__ bool is_there(const Awaited& awaited, uint64_t seen) {
    if (awaited.what == HEADRACE_MOE_ROOM) return headrace::moe::may_write(seen, awaited.expected);
    return headrace::moe::has_come(seen, awaited.expected) ||
           (awaited.what == HEADRACE_MOE_SUMS && headrace::moe::is_missing(seen, awaited.expected));
  }
  /// The rare look. Returns since when the thread waits; 0: it shall wait no longer.
  __device__ uint64_t still_waits(const Awaited& awaited, uint64_t seen, uint64_t since_ns) {
    const uint64_t now = clock_ns();
    if (since_ns == 0) since_ns = now;
    const uint64_t words = args_.own_window() + args_.window.words_at(awaited.peer);
    uint64_t reason = 0;
    if (args_.timeout_ns != 0 && now - since_ns >= args_.timeout_ns) reason = HEADRACE_MOE_TIMED_OUT;
    if (look_at(words + offsetof(PeerWords, left_out)) != 0) reason = HEADRACE_MOE_LEFT_OUT;
    if (args_.abort != 0 && look_at(args_.abort) != 0) reason = HEADRACE_MOE_ABORTED;
    if (reason != 0) {
      leave_out(awaited, reason, seen);
      // After the report, which knows more than that of a block that begins now. The first word stays.
      if (reason != HEADRACE_MOE_TIMED_OUT)
        static_cast<void>(swap_if(state(offsetof(State, over)), 0, over_word(reason, awaited.peer)));
      return 0;
    }
    // Another thread may have given up.
    const bool is_left = (look_at(state(offsetof(State, gone_now))) & bit_of(awaited.peer)) != 0;
    return is_over() || is_left ? 0 : since_ns;
  }
  __device__ void close(uint64_t gone) const {
    State& state = *at<State>(args_.state);
    state.gone |= gone;
    state.gone_now = 0;
    state.reported = 0;
    state.next = 0;
    state.ended = 0, state.met = 0;
    if ((args_.halves & HEADRACE_MOE_SEND) != 0) state.sent[operation_] = sends_;
    if ((args_.halves & HEADRACE_MOE_RECEIVE) != 0) state.received[operation_] = receives_;
  }

  const Common& args_;
  const Operation operation_;
  const State& state_;
  uint64_t active_, sends_, receives_;
};

/// The first of a launch; a status that the host has not read yet stays.
inline __device__ __noinline__ void Turn::report_of(const Common& args, const Turn& turn,
                                                    const Awaited& awaited, uint64_t reason, uint64_t seen) {
  if (swap_if(turn.state(offsetof(State, reported)), 0, 1) != 0) return;
  if (look_at(args.status) != 0) return;
  const bool is_entry = reason == HEADRACE_MOE_WRONG_EXPERT || reason == HEADRACE_MOE_WRONG_PLACE;
  volatile auto* const status = at<headrace_moe_status_v1>(args.status);
  status->waiter = args.rank;
  status->peer = awaited.peer;
  status->operation = turn.operation_;
  status->awaited = awaited.what;
  const bool is_room = awaited.what == HEADRACE_MOE_ROOM;
  status->number = is_room || is_entry ? turn.sends_ : turn.receives_;
  status->expected = is_room ? turn.sends_ - headrace::moe::halves : awaited.expected;
  status->seen = seen;
  release(args.status, reason);
}

}  // namespace headrace::kernels::moe
