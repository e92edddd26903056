// SPDX-License-Identifier: Apache-2.0
// A fabric in kernels: flags of arrivals, and words that the host watches.
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

constexpr unsigned looks_between = 256;  // at the clock: a look at host memory costs a read over PCIe

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

/// What the first lane has, for all of them.
template <Scope scope>
HEADRACE_DEVICE Waited told_to_all(Waited first) {
  if (all_of<scope>(first == Waited::reached)) return Waited::reached;
  return all_of<scope>(first != Waited::closed) ? Waited::late : Waited::closed;
}

}  // namespace detail

/// Waits until a flag of an expectation (FabricExpectation::flag) shows that many full rounds. Then all
/// threads of the scope can read the bytes of their posts.
///   timeout_ns  negative: none; the close of the fabric and the end of the expectation end it in any case
template <Scope scope>
[[nodiscard]] HEADRACE_DEVICE Waited wait_flag(const uint64_t* flag, uint64_t rounds, int64_t timeout_ns) {
  Waited waited = Waited::reached;
  if (detail::lane<scope>() == 0) waited = detail::wait_flag_alone(flag, rounds, timeout_ns);
  return detail::told_to_all<scope>(waited);
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

}  // namespace headrace::device
