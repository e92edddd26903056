// SPDX-License-Identifier: Apache-2.0
// Words that several GPUs, or a GPU and its host, read and write, and the clock of a wait for one.
//
// They are written with release and read with acquire at system scope: a thread that sees a word sees what
// its writer did before it wrote the word.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__

namespace headrace::kernels {

__device__ __forceinline__ uint64_t acquire(uint64_t address) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ void release(uint64_t address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
/// The current value, which orders nothing.
__device__ __forceinline__ uint64_t look_at(uint64_t address) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
/// Orders nothing by itself: behind a fence that this thread has passed it is a release.
__device__ __forceinline__ void store_relaxed(uint64_t address, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

}  // namespace headrace::kernels

#endif
