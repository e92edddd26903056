// SPDX-License-Identifier: Apache-2.0
// Words of windows, which several GPUs change at once: by atomic instructions at system scope alone.
#pragma once

#include "kernels/common/words.cuh"
#include "kernels/windows/condition.cuh"

namespace headrace::kernels::windows {

using Word = headrace_windows_word_v1;

/// Pairs with `acquire` of the rank that waits: it sees what was put before.
__device__ __forceinline__ void release_add(uint64_t address, uint64_t value) {
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t add_wide(uint64_t address, uint64_t value) {
  uint64_t before;
  asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(address), "l"(value)
               : "memory");
  return before;
}
__device__ __forceinline__ uint64_t add_narrow(uint64_t address, uint64_t value) {
  uint32_t before;
  asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(address), "r"(static_cast<uint32_t>(value))
               : "memory");
  return before;
}
/// Takes 1 from a word that has been read as `seen`. False: it has changed.
__device__ __forceinline__ bool take(uint64_t address, uint64_t seen) {
  uint64_t before;
  asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(address), "l"(seen), "l"(seen - 1)
               : "memory");
  return before == seen;
}

__device__ __forceinline__ void report(const Word& args, uint64_t reason, uint64_t seen) {
  auto* const status = reinterpret_cast<volatile headrace_windows_status_v1*>(args.status);
  status->rank = args.rank;
  status->peer = args.peer;
  status->expected = args.value;
  status->seen = seen;
  release(args.status, reason);
}

__device__ __forceinline__ void send_signal(const Word& args) {
  // What the stream held before has ended: its bytes are at the peer.
  if (args.kind == HEADRACE_COMM_SIGNAL_SET)
    release(args.word, args.value);
  else
    release_add(args.word, args.value);
}

__device__ __forceinline__ void wait_for_signal(const Word& args) {
  constexpr unsigned looks_between = 256;  // a look at host memory costs a read over PCIe
  const uint64_t began = clock_ns();
  for (unsigned looks = 0;; ++looks) {
    const uint64_t seen = acquire(args.word);
    if (holds(args.kind, seen, args.value) && (args.kind != HEADRACE_COMM_TAKE || take(args.word, seen)))
      return report(args, HEADRACE_WINDOWS_DONE, seen);
    if (looks % looks_between != 0) continue;
    if (args.abort != 0 && look_at(args.abort) != 0) return report(args, HEADRACE_WINDOWS_ABORTED, seen);
    if (args.timeout_ns >= 0 && clock_ns() - began >= static_cast<uint64_t>(args.timeout_ns))
      return report(args, HEADRACE_WINDOWS_TIMED_OUT, seen);
  }
}

__device__ __forceinline__ void add_to_element(const Word& args) {
  const uint64_t before =
      args.kind == 4 ? add_narrow(args.word, args.value) : add_wide(args.word, args.value);
  report(args, HEADRACE_WINDOWS_DONE, before);
}

}  // namespace headrace::kernels::windows
