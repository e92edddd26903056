// SPDX-License-Identifier: Apache-2.0
// A fabric in kernels: flags of arrivals, words that the host watches, and queues of commands.
//
//   __global__ void use(const uint64_t* flag, uint64_t layer, const float* rows) {
//     using namespace headrace::device;
//     if (wait_flag<Scope::block>(flag, layer, 5'000'000'000) != Waited::reached) return;
//     ...                                                     // the rows of this layer can be read
//   }
//   __global__ void compute(float* rows, uint64_t* watched) {
//     ...
//     headrace::device::bump<Scope::block>(watched);         // what the block has written is told
//   }
//   __global__ void send(headrace_fabric_queue_v1* queue, float* rows) {
//     headrace::device::Commands commands(queue);
//     const uint64_t sent = commands.post<Scope::block>(3, 0, 64);  // write 3 of the list, its first 64
//     units if (sent == 0 || commands.wait<Scope::block>(sent) != Waited::reached) return;
//     ...                                                     // the rows may get their next values
//   }
//
// Functions with a scope are called by all threads of it (thread, warp: 32 threads of one warp, block), with
// the same arguments. All of them may go on when it returns. No function traps, and none waits for good.
//
// Nothing is needed but these headers and CUDA. On the CPU it compiles too, with threads as scopes: tests
// run it.
#pragma once

#include <headrace/device/fabric_v1.h>
#include <headrace/device/words.cuh>

namespace headrace::device {

/// How a wait has ended.
enum class Waited { reached, late, closed };

namespace detail {

// Looks at a word between two at the clock and at the close, which lies in host memory: a read over PCIe.
#ifdef __CUDACC__
constexpr unsigned looks_between = 256;
#else
constexpr unsigned looks_between = 1;
#endif

/// Whether its time is over. Negative: it never is.
HEADRACE_DEVICE bool is_late(uint64_t began, int64_t timeout_ns) {
  return timeout_ns >= 0 && clock_ns() - began >= static_cast<uint64_t>(timeout_ns);
}

HEADRACE_DEVICE Waited wait_flag_alone(const uint64_t* flag, uint64_t rounds, int64_t timeout_ns) {
  const uint64_t began = clock_ns();
  for (unsigned looks = 0;; ++looks) {
    const uint64_t seen = acquire(flag);
    if ((seen & ~HEADRACE_FABRIC_ENDED) >= rounds) return Waited::reached;
    if (seen & HEADRACE_FABRIC_ENDED) return Waited::closed;
    if (looks % looks_between == 0 && is_late(began, timeout_ns)) return Waited::late;
    pause();
  }
}

template <Scope scope>
HEADRACE_DEVICE Waited of_first(Waited mine) {
  return static_cast<Waited>(of_first<scope>(static_cast<uint64_t>(mine)));
}

/// What interrupts a wait of a kernel: nothing.
struct Nothing {
  HEADRACE_DEVICE bool operator()() const { return false; }
};

}  // namespace detail

/// Waits until a flag of an expectation (FabricExpectation::flag) shows that many full rounds. Then all
/// threads of the scope can read the bytes of their posts.
///   timeout_ns  negative: none; the close of the fabric and the end of the expectation end it in any case
template <Scope scope>
[[nodiscard]] HEADRACE_DEVICE Waited wait_flag(const uint64_t* flag, uint64_t rounds, int64_t timeout_ns) {
  Waited waited = Waited::reached;
  if (detail::lane<scope>() == 0) waited = detail::wait_flag_alone(flag, rounds, timeout_ns);
  return detail::of_first<scope>(waited);
}

/// The full rounds that a flag shows. Without a wait.
[[nodiscard]] HEADRACE_DEVICE uint64_t read_flag(const uint64_t* flag) {
  return detail::acquire(flag) & ~HEADRACE_FABRIC_ENDED;
}

/// Adds to a word that the host watches (Fabric::watch), after all that the scope has written. A word is
/// changed by kernels of one GPU: additions of several to host memory get lost.
template <Scope scope>
HEADRACE_DEVICE void bump(uint64_t* word, uint64_t by = 1) {
  detail::fence();
  detail::meet<scope>();
  if (detail::lane<scope>() == 0) detail::add(word, by);
  detail::meet<scope>();
}

// ------------------------------------------------------------------ commands

/// A queue of commands (Fabric::command_queue): each is a write of the queue's list, or a part of it, and is
/// carried by the host's worker in the order of their numbers. Any threads of one GPU post to it at once.
class Commands {
 public:
  HEADRACE_DEVICE explicit Commands(headrace_fabric_queue_v1* queue) : queue_(*queue) {}

  /// Posts units [first, first + count) of a write of the list, with what all threads of the scope have
  /// written before. While as many commands as the queue has slots have not ended, it waits. Returns the
  /// number of the command, from 1 on; 0: late, or closed while it waited, and nothing was posted. A queue
  /// with free slots takes a command after its close, too, and carries it no more: `wait` says `closed`.
  ///   interrupted  of threads of the host: once it is true a wait for a slot ends, without a status
  template <Scope scope, class Interrupted = detail::Nothing>
  HEADRACE_DEVICE uint64_t post(uint32_t write, uint32_t first, uint32_t count,
                                Interrupted interrupted = {}) const {
    detail::fence();
    detail::meet<scope>();
    uint64_t number = 0;
    if (detail::lane<scope>() == 0 && (number = take_slot(interrupted)) != 0)
      fill(number, write, first, count);
    return detail::of_first<scope>(number);
  }

  /// Waits until this command and all before it have ended: nothing reads their memory any more, and the
  /// bytes of those that did not fail lie at the peers. `closed`: some may still be read, until the host's
  /// close has returned.
  ///   interrupted  as in post
  template <Scope scope, class Interrupted = detail::Nothing>
  [[nodiscard]] HEADRACE_DEVICE Waited wait(uint64_t number, Interrupted interrupted = {}) const {
    Waited waited = Waited::reached;
    if (detail::lane<scope>() == 0) waited = wait_alone(number, interrupted);
    return detail::of_first<scope>(waited);
  }
  /// Commands that have ended: the first ones.
  [[nodiscard]] HEADRACE_DEVICE uint64_t ended() const { return detail::acquire(&told().ended); }
  /// Of them, those that have failed. The host's `on_error` says why.
  [[nodiscard]] HEADRACE_DEVICE uint64_t failed() const { return detail::acquire(&told().failed); }
  /// Whether the host has closed the queue.
  [[nodiscard]] HEADRACE_DEVICE bool closed() const { return detail::acquire(&told().closed) != 0; }

 private:
  [[nodiscard]] HEADRACE_DEVICE const headrace_fabric_told_v1& told() const {
    return *reinterpret_cast<const headrace_fabric_told_v1*>(queue_.told);
  }

  /// The number of a command that has a slot, or 0. A number is taken only with its slot, so that the ring
  /// has no holes.
  template <class Interrupted>
  HEADRACE_DEVICE uint64_t take_slot(Interrupted& interrupted) const {
    const uint64_t began = detail::clock_ns();
    uint64_t posted = detail::acquire(&queue_.posted);
    for (unsigned looks = 0;; ++looks) {
      if (has_slot(posted)) {
        const uint64_t before = detail::change(&queue_.posted, posted, posted + 1);
        if (before == posted) return posted + 1;
        posted = before;
        continue;
      }
      if (looks % detail::looks_between == 0) {
        if (closed() || interrupted()) return 0;
        if (detail::is_late(began, queue_.timeout_ns)) return leave(HEADRACE_FABRIC_FULL, posted + 1);
      }
      detail::pause();
      posted = detail::acquire(&queue_.posted);
    }
  }
  HEADRACE_DEVICE bool has_slot(uint64_t posted) const {
    if (posted - detail::acquire(&queue_.seen_ended) < queue_.capacity) return true;
    const uint64_t ended = this->ended();
    if (posted - ended >= queue_.capacity) return false;
    detail::release(&queue_.seen_ended, ended);  // others may store less: then they look once more
    return true;
  }
  HEADRACE_DEVICE void fill(uint64_t number, uint32_t write, uint32_t first, uint32_t count) const {
    const uint64_t at = number - 1;
    auto* const command =
        reinterpret_cast<headrace_fabric_command_v1*>(queue_.commands) + at % queue_.capacity;
    const auto turn = static_cast<uint32_t>(at / queue_.capacity + 1);
    detail::store(&command->units, static_cast<uint64_t>(count) << 32 | first);
    // With it the host sees the units, and what the scope has written: it pairs with CommandQueue::next.
    detail::release(&command->write, static_cast<uint64_t>(write) << 32 | turn);
  }
  template <class Interrupted>
  HEADRACE_DEVICE Waited wait_alone(uint64_t number, Interrupted& interrupted) const {
    const uint64_t began = detail::clock_ns();
    for (unsigned looks = 0; ended() < number; ++looks) {
      if (looks % detail::looks_between == 0) {
        if (closed()) return ended() < number ? Waited::closed : Waited::reached;
        if (interrupted()) return Waited::late;
        if (detail::is_late(began, queue_.timeout_ns)) {
          leave(HEADRACE_FABRIC_NOT_ENDED, number);
          return Waited::late;
        }
      }
      detail::pause();
    }
    return Waited::reached;
  }
  /// The first one that is late leaves a status for the host. Returns 0.
  HEADRACE_DEVICE uint64_t leave(uint64_t reason, uint64_t command) const {
    if (detail::change(&queue_.was_late, 0, 1) != 0) return 0;
    auto* const status = reinterpret_cast<headrace_fabric_status_v1*>(queue_.status);
    detail::store(&status->command, command);
    detail::store(&status->ended, ended());
    detail::release(&status->reason, reason);
    return 0;
  }

  headrace_fabric_queue_v1& queue_;
};

}  // namespace headrace::device
