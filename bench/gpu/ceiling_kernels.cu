// SPDX-License-Identifier: Apache-2.0
// The barest kernels that move pages: what bench/gpu/ceilings.cpp holds Headrace's against. They share
// nothing with kernels/, so that a mistake there is not the ceiling's too.

namespace {

constexpr unsigned all_lanes = 0xffffffffu;

using Address = unsigned long long;

// Volatile: nothing of what a host or another GPU has written since is taken from a cache of this
// multiprocessor.
__device__ __forceinline__ uint4 load(Address from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void store(Address to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void tell(Address word, unsigned long long value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/// One page of 4 KiB, or nothing, by a block of so many threads; then the word.
template <unsigned Threads>
__device__ __forceinline__ void move_page(Address from, Address to, unsigned bytes, Address word,
                                          unsigned long long value) {
  constexpr unsigned vectors = 256 / Threads;
  if (bytes != 0) {
    uint4 held[vectors];
#pragma unroll
    for (unsigned i = 0; i < vectors; ++i) held[i] = load(from + (threadIdx.x + i * Threads) * 16);
#pragma unroll
    for (unsigned i = 0; i < vectors; ++i) store(to + (threadIdx.x + i * Threads) * 16, held[i]);
  }
  if (Threads > 32)
    __syncthreads();
  else
    __syncwarp();
  if (threadIdx.x == 0) tell(word, value);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256)
    ceiling_page_256(Address from, Address to, unsigned bytes, Address word, unsigned long long value) {
  move_page<256>(from, to, bytes, word, value);
}
extern "C" __global__ void __launch_bounds__(32)
    ceiling_page_32(Address from, Address to, unsigned bytes, Address word, unsigned long long value) {
  move_page<32>(from, to, bytes, word, value);
}

// A warp that stays for `last` jobs. A job is 32 bytes of host memory, source and number, target and number:
// two lanes read them at once, and each half says by itself whether it is the new one's. Without a job for
// two seconds it leaves.
extern "C" __global__ void __launch_bounds__(32)
    ceiling_resident(Address job, unsigned bytes, Address word, unsigned long long last) {
  constexpr unsigned long long longest_ns = 2'000'000'000;
  for (unsigned long long number = 1; number <= last; ++number) {
    unsigned long long place = 0, seen = 0, now, until;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    until = now + longest_ns;
    bool both = false;
    for (unsigned looks = 1; !both; ++looks) {
      if (threadIdx.x < 2)
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];"
                     : "=l"(place), "=l"(seen)
                     : "l"(job + threadIdx.x * 16)
                     : "memory");
      both = __all_sync(all_lanes, threadIdx.x >= 2 || seen >= number);
      if (looks % 64 == 0) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (__any_sync(all_lanes, now > until)) return;
      }
    }
    const Address from = __shfl_sync(all_lanes, place, 0), to = __shfl_sync(all_lanes, place, 1);
    move_page<32>(from, to, bytes, word, number);
  }
}

// Many pages, each a multiple of 4 KiB, by so many warps as there are; `sources` and `targets` hold their
// addresses.
extern "C" __global__ void __launch_bounds__(512)
    ceiling_pages(const Address* sources, const Address* targets, unsigned long long count,
                  unsigned long long page_bytes) {
  constexpr unsigned step = 4096;
  const unsigned lane = threadIdx.x % 32;
  const unsigned long long steps = page_bytes / step, all = steps * count;
  for (unsigned long long i = blockIdx.x * 16ull + threadIdx.x / 32; i < all; i += gridDim.x * 16ull) {
    const unsigned long long page = i / steps, at = i % steps * step + lane * 16;
    const Address from = sources[page] + at, to = targets[page] + at;
    uint4 held[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) held[k] = load(from + k * 512);
#pragma unroll
    for (int k = 0; k < 8; ++k) store(to + k * 512, held[k]);
  }
}
