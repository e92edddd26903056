// SPDX-License-Identifier: Apache-2.0
// Words of memory and threads, as the machine has them: what the other headers of this folder stand on. On
// the CPU it compiles too, with threads as scopes: tests run it.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define HEADRACE_DEVICE __device__ __forceinline__
#else
#include <chrono>
#include <thread>
#define HEADRACE_DEVICE inline
#endif

namespace headrace::device {

/// Which threads call a function together.
enum class Scope { thread, warp, block };

namespace detail {

#ifdef __CUDACC__
HEADRACE_DEVICE uint64_t acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
HEADRACE_DEVICE void release(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
HEADRACE_DEVICE uint64_t add(uint64_t* word, uint64_t value) {
  uint64_t before;
  asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(word), "l"(value)
               : "memory");
  return before;
}
HEADRACE_DEVICE void store(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
/// The value before: `expected` if it was changed.
HEADRACE_DEVICE uint64_t change(uint64_t* word, uint64_t expected, uint64_t value) {
  uint64_t before;
  asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(word), "l"(expected), "l"(value)
               : "memory");
  return before;
}
HEADRACE_DEVICE void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
HEADRACE_DEVICE uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
HEADRACE_DEVICE void pause() {}
template <Scope scope>
HEADRACE_DEVICE unsigned lane() {
  if (scope == Scope::thread) return 0;
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  return scope == Scope::warp ? thread % 32 : thread;
}
template <Scope scope>
HEADRACE_DEVICE unsigned lanes() {
  if (scope == Scope::thread) return 1;
  return scope == Scope::warp ? 32 : blockDim.x * blockDim.y * blockDim.z;
}
template <Scope scope>
HEADRACE_DEVICE void meet() {
  if (scope == Scope::warp) __syncwarp();
  if (scope == Scope::block) __syncthreads();
}
/// Whether all lanes say so.
template <Scope scope>
HEADRACE_DEVICE bool all_of(bool mine) {
  if (scope == Scope::warp) return __all_sync(0xffffffffu, mine) != 0;
  if (scope == Scope::block) return __syncthreads_and(mine) != 0;
  return mine;
}
/// What the first lane has, for all lanes.
template <Scope scope>
HEADRACE_DEVICE uint64_t of_first(uint64_t mine) {
  if (scope == Scope::warp) return __shfl_sync(0xffffffffu, static_cast<unsigned long long>(mine), 0);
  if (scope == Scope::block) {
    __shared__ uint64_t told;
    __syncthreads();  // all have read what was told before
    if (lane<scope>() == 0) told = mine;
    __syncthreads();
    return told;
  }
  return mine;
}
#else
inline uint64_t acquire(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline void release(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline uint64_t add(uint64_t* word, uint64_t value) {
  return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}
inline void store(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
inline uint64_t change(uint64_t* word, uint64_t expected, uint64_t value) {
  __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
inline void fence() {}
inline uint64_t clock_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                               std::chrono::nanoseconds(1));
}
inline void pause() { std::this_thread::yield(); }
template <Scope>
unsigned lane() {
  return 0;
}
template <Scope>
unsigned lanes() {
  return 1;
}
template <Scope>
void meet() {}
template <Scope>
bool all_of(bool mine) {
  return mine;
}
template <Scope>
uint64_t of_first(uint64_t mine) {
  return mine;
}
#endif

}  // namespace detail

}  // namespace headrace::device
