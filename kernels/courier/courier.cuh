// SPDX-License-Identifier: Apache-2.0
// A kernel that stays on the GPU and looks at a ring of small jobs in host memory: what a launch costs is
// paid once for many of them.
//
// One warp looks, a word a lane, so that one read over PCIe brings a whole job; the other warps wait at a
// barrier and cost nothing. All warps move the bytes.
#pragma once

#include "kernels/gather_scatter/gather_scatter.cuh"

namespace headrace::kernels {

constexpr unsigned courier_threads = 512;
constexpr unsigned courier_warps = courier_threads / warp_lanes;
static_assert((courier_warps & (courier_warps - 1)) == 0, "turns wrap around");
static_assert(HEADRACE_COURIER_WORDS == warp_lanes, "a word a lane");

__device__ __forceinline__ unsigned long long clock_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/// A word of host memory as it is now. Pairs with the release of whoever wrote word 0 of the job: the bytes
/// that he wrote before are seen, and nothing that was cached for a job before this one.
__device__ __forceinline__ unsigned long long look_at(const unsigned long long* word) {
  unsigned long long value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

/// When a launch leaves. The GPU's clock is slow to read, so only every so many looks; a look takes about a
/// microsecond.
class Stay {
 public:
  static constexpr unsigned looks_between = 16;

  __device__ explicit Stay(const headrace_courier_v1& args)
      : args_(args), began_(clock_ns()), since_(began_), waits_for_(args.first) {}
  /// Before a look for job `number`. For its first job a launch looks once at least, so that none is in vain.
  __device__ bool is_over(unsigned long long number) {
    if (looks_++ % looks_between != looks_between - 1) return false;
    const unsigned long long now = clock_ns();
    if (number != waits_for_) waits_for_ = number, since_ = now;
    return now - began_ >= args_.stay_ns || now - since_ > args_.idle_ns;
  }

 private:
  const headrace_courier_v1& args_;
  const unsigned long long began_;
  unsigned long long since_;      // the clock's last look before which a job had come
  unsigned long long waits_for_;  // the job after that
  unsigned looks_ = 0;
};

/// The look-out of one launch: what the first warp does between jobs.
class Lookout {
 public:
  __device__ explicit Lookout(const headrace_courier_v1& args) : args_(args), stay_(args) {}

  /// This lane's word of the job, without the number; 0 in all lanes: it is time to leave.
  __device__ unsigned long long wait_for(unsigned long long number) {
    const auto* const words = reinterpret_cast<const unsigned long long*>(args_.jobs) +
                              number % HEADRACE_COURIER_SLOTS * HEADRACE_COURIER_WORDS;
    for (;;) {
      if (__any_sync(all_lanes, stay_.is_over(number))) return 0;
      const unsigned long long word = look_at(words + threadIdx.x);
      // 16 bits of the number: only the job before in this slot can still be there, and its number is near.
      if (__all_sync(all_lanes, word >> HEADRACE_COURIER_NUMBER_SHIFT == (number & 0xffff)))
        return word & ((1ull << HEADRACE_COURIER_NUMBER_SHIFT) - 1);
    }
  }

 private:
  const headrace_courier_v1& args_;
  Stay stay_;
};

/// A part, in pieces that end where the target is aligned and are dealt to
/// the warps in turn. `turn`: pieces dealt so far, of all parts.
template <int Unroll, unsigned PieceBytes>
__device__ __forceinline__ void deal_part(unsigned long long source, unsigned long long target,
                                          unsigned long long bytes, unsigned& turn) {
  const unsigned skew = static_cast<unsigned>(target) & (vector_bytes - 1);
  const unsigned pieces = static_cast<unsigned>((skew + bytes + PieceBytes - 1) / PieceBytes);
  for (unsigned piece = (threadIdx.x / warp_lanes - turn) % courier_warps; piece < pieces;
       piece += courier_warps) {
    const unsigned long long first = static_cast<unsigned long long>(piece) * PieceBytes;
    Stretch part{source, target, bytes, 0, bytes};
    if (piece != 0) part.begin = first - skew;
    if (first + PieceBytes - skew < bytes) part.end = first + PieceBytes - skew;
    move_stretch<Unroll, page_hint>(part, threadIdx.x % warp_lanes);
  }
  turn += pieces;
}

template <int Unroll, unsigned PieceBytes>
__device__ __forceinline__ void deal_job(const unsigned long long* words) {
  unsigned turn = 0;
  for (unsigned i = 0; i < words[0]; ++i)
    deal_part<Unroll, PieceBytes>(words[1 + 3 * i], words[2 + 3 * i], words[3 + 3 * i], turn);
}

/// A job that needs no arithmetic: one part, a vector or none for each thread.
__device__ __forceinline__ bool is_plain(const unsigned long long* words, unsigned threads) {
  return words[0] == 1 && words[3] <= threads * vector_bytes &&
         ((words[1] | words[2] | words[3]) & (vector_bytes - 1)) == 0;
}

/// Plain jobs at once; others of one round of rows by the row, so that all loads of a page leave at once;
/// larger ones by the tile.
__device__ __forceinline__ void move_job(const unsigned long long* words) {
  if (is_plain(words, courier_threads)) {
    const unsigned at = threadIdx.x * vector_bytes;
    if (at < words[3])
      store<0, page_hint>(reinterpret_cast<uint4*>(words[2] + at),
                          load<0, page_hint>(reinterpret_cast<const uint4*>(words[1] + at)));
    return;
  }
  unsigned long long bytes = 0;
  for (unsigned i = 0; i < words[0]; ++i) bytes += words[3 + 3 * i];
  if (bytes <= courier_warps * row_bytes)
    deal_job<1, row_bytes>(words);
  else
    deal_job<page_unroll, page_unroll * row_bytes>(words);
}

/// All threads' bytes come before: the barrier orders them before the release, which pairs with the acquire of
/// whoever waits. Nothing else is needed, and a fence more is a microsecond's part.
__device__ __forceinline__ void tell(uint64_t* word, unsigned long long value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

}  // namespace headrace::kernels
