// SPDX-License-Identifier: Apache-2.0
// How a warp moves bytes between any two addresses.
#pragma once

#include "kernels/common/tile.cuh"

namespace headrace::kernels {

constexpr unsigned all_lanes = 0xffffffffu;

/// What caches are told of bytes that pass through once; `strong`: loads see the current bytes, not those
/// that were cached before.
enum class Hint { plain, streaming, no_allocate, strong };

inline constexpr Hint page_hint = Hint::no_allocate;  // the best one that was measured

/// Calls f.template operator()<0>() to <Count - 1>: a loop whose counter is a constant of the instruction.
template <int Count, int i = 0, class F>
__device__ __forceinline__ void each(F f) {
  if constexpr (i < Count) {
    f.template operator()<i>();
    each<Count, i + 1>(f);
  }
}

/// The vector `row` rows behind `from`, which is this lane's place in row 0.
template <int row, Hint hint>
__device__ __forceinline__ uint4 load(const uint4* from) {
  uint4 v;
  // Volatile: the compiler keeps the order, all loads of a tile before its first store. The offset is part of
  // the instruction, so a tile needs one address and not one for each row.
  if constexpr (hint == Hint::plain)
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4+%5];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "n"(row * static_cast<int>(row_bytes)));
  if constexpr (hint == Hint::streaming)
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4+%5];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "n"(row * static_cast<int>(row_bytes)));
  if constexpr (hint == Hint::no_allocate)
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4+%5];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "n"(row * static_cast<int>(row_bytes)));
  if constexpr (hint == Hint::strong)
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4+%5];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "n"(row * static_cast<int>(row_bytes))
                 : "memory");
  return v;
}

template <int row, Hint hint>
__device__ __forceinline__ void store(uint4* to, uint4 v) {
  if constexpr (hint == Hint::plain)
    asm volatile("st.global.v4.u32 [%0+%5], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w),
                 "n"(row * static_cast<int>(row_bytes))
                 : "memory");
  if constexpr (hint == Hint::streaming)
    asm volatile("st.global.cs.v4.u32 [%0+%5], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w), "n"(row * static_cast<int>(row_bytes))
                 : "memory");
  if constexpr (hint == Hint::no_allocate || hint == Hint::strong)
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0+%5], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w), "n"(row * static_cast<int>(row_bytes))
                 : "memory");
}

__device__ __forceinline__ void move_bytes(const unsigned char* from, unsigned char* to, unsigned count,
                                           unsigned lane) {
  for (unsigned i = lane; i < count; i += warp_lanes) to[i] = from[i];
}

/// `count` vectors, both sides aligned.
template <int Unroll, Hint hint>
__device__ __forceinline__ void move_vectors(const uint4* from, uint4* to, unsigned long long count,
                                             unsigned lane) {
  constexpr unsigned tile = warp_lanes * Unroll;
  uint4 held[Unroll];
  from += lane;
  to += lane;
  for (; count >= tile; count -= tile, from += tile, to += tile) {
    each<Unroll>([&]<int i>() { held[i] = load<i, hint>(from); });
    each<Unroll>([&]<int i>() { store<i, hint>(to, held[i]); });
  }
  if (count == 0) return;
  const unsigned left = static_cast<unsigned>(count);
  each<Unroll>([&]<int i>() {
    if (i * warp_lanes + lane < left) held[i] = load<i, hint>(from);
  });
  each<Unroll>([&]<int i>() {
    if (i * warp_lanes + lane < left) store<i, hint>(to, held[i]);
  });
}

/// Bytes shift .. shift + 15 of the 32 bytes `low`, `high`; shift < 16, the same in all lanes.
__device__ __forceinline__ uint4 straddle(uint4 low, uint4 high, unsigned shift) {
  unsigned a, b, c, d, e;
  switch (shift >> 2) {
    case 0:
      a = low.x, b = low.y, c = low.z, d = low.w, e = high.x;
      break;
    case 1:
      a = low.y, b = low.z, c = low.w, d = high.x, e = high.y;
      break;
    case 2:
      a = low.z, b = low.w, c = high.x, d = high.y, e = high.z;
      break;
    default:
      a = low.w, b = high.x, c = high.y, d = high.z, e = high.w;
      break;
  }
  const unsigned bits = (shift & 3) * 8;
  return {__funnelshift_r(a, b, bits), __funnelshift_r(b, c, bits), __funnelshift_r(c, d, bits),
          __funnelshift_r(d, e, bits)};
}

/// `count` aligned vectors at `to` from `shift` bytes behind `from`, which is aligned. Reads count + 1
/// vectors there: each once, for over a link every byte counts; what lies across two of them comes from the
/// neighbour lane.
template <int Unroll, Hint hint>
__device__ __forceinline__ void move_shifted(const uint4* from, uint4* to, unsigned long long count,
                                             unsigned shift, unsigned lane) {
  constexpr unsigned tile = warp_lanes * Unroll;
  uint4 held[Unroll + 1];
  from += lane;
  to += lane;
  for (;;) {
    const unsigned now =
        count < tile ? static_cast<unsigned>(count) : tile;  // vectors stored in this step, one more is read
    each<Unroll>([&]<int i>() {
      held[i] = {};
      if (i * warp_lanes + lane <= now) held[i] = load<i, hint>(from);
    });
    held[Unroll] = {};
    if (lane == 0 && now == tile) held[Unroll] = load<Unroll, hint>(from);
    each<Unroll>([&]<int i>() {
      // Lane 0 offers the first vector of the next row, which lane 31 needs; no other lane needs lane 0's.
      const uint4 offer = lane == 0 ? held[i + 1] : held[i];
      const unsigned neighbour = (lane + 1) & (warp_lanes - 1);
      uint4 next;
      next.x = __shfl_sync(all_lanes, offer.x, neighbour);
      next.y = __shfl_sync(all_lanes, offer.y, neighbour);
      next.z = __shfl_sync(all_lanes, offer.z, neighbour);
      next.w = __shfl_sync(all_lanes, offer.w, neighbour);
      if (i * warp_lanes + lane < now) store<i, hint>(to, straddle(held[i], next, shift));
    });
    count -= now;
    if (count == 0) return;
    from += tile;
    to += tile;
  }
}

/// Bytes [begin, end) of a run of run_bytes bytes. `begin` is 0 or such that its target is aligned.
struct RunSlice {
  unsigned long long source, target, run_bytes, begin, end;
};

/// Any alignment and length. Vectors are read only where all 16 bytes belong to the run; the rest goes byte
/// by byte.
template <int Unroll, Hint hint>
__device__ __forceinline__ void move_slice(const RunSlice& slice, unsigned lane) {
  unsigned long long left = slice.end - slice.begin;
  unsigned long long source = slice.source + slice.begin, target = slice.target + slice.begin;
  unsigned head = static_cast<unsigned>(0 - target) & (vector_bytes - 1);
  const unsigned shift = static_cast<unsigned>(source + head) & (vector_bytes - 1);
  if (source + head - shift < slice.source) head += vector_bytes;  // that vector would begin before the run
  if (head > left) head = static_cast<unsigned>(left);
  move_bytes(reinterpret_cast<const unsigned char*>(source), reinterpret_cast<unsigned char*>(target), head,
             lane);
  source += head, target += head, left -= head;

  unsigned long long vectors = left / vector_bytes;
  if (vectors != 0) {
    if (shift == 0) {
      move_vectors<Unroll, hint>(reinterpret_cast<const uint4*>(source), reinterpret_cast<uint4*>(target),
                                 vectors, lane);
    } else {
      const unsigned long long whole = (slice.source + slice.run_bytes - (source - shift)) / vector_bytes;
      if (vectors + 1 > whole) vectors = whole - 1;
      if (vectors != 0)
        move_shifted<Unroll, hint>(reinterpret_cast<const uint4*>(source - shift),
                                   reinterpret_cast<uint4*>(target), vectors, shift, lane);
    }
  }
  source += vectors * vector_bytes, target += vectors * vector_bytes, left -= vectors * vector_bytes;
  move_bytes(reinterpret_cast<const unsigned char*>(source), reinterpret_cast<unsigned char*>(target),
             static_cast<unsigned>(left), lane);
}

/// A run that `Warps` warps of a block move together, from warp 0 on: in pieces that end where the target is
/// aligned and are dealt to them in turn. `turn`: pieces dealt so far, of all runs.
template <int Unroll, unsigned PieceBytes, unsigned Warps>
__device__ __forceinline__ void deal_run(unsigned long long source, unsigned long long target,
                                         unsigned long long bytes, unsigned& turn) {
  static_assert((Warps & (Warps - 1)) == 0, "turns wrap around");
  const unsigned skew = static_cast<unsigned>(target) & (vector_bytes - 1);
  const unsigned pieces = static_cast<unsigned>((skew + bytes + PieceBytes - 1) / PieceBytes);
  for (unsigned piece = (threadIdx.x / warp_lanes - turn) % Warps; piece < pieces; piece += Warps) {
    const unsigned long long first = static_cast<unsigned long long>(piece) * PieceBytes;
    RunSlice slice{source, target, bytes, 0, bytes};
    if (piece != 0) slice.begin = first - skew;
    if (first + PieceBytes - skew < bytes) slice.end = first + PieceBytes - skew;
    move_slice<Unroll, page_hint>(slice, threadIdx.x % warp_lanes);
  }
  turn += pieces;
}

/// The warps of a launch, numbered through.
struct WarpPlace {
  unsigned lane = threadIdx.x % warp_lanes;
  unsigned long long number =
      (static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x) / warp_lanes;
  unsigned long long count = static_cast<unsigned long long>(gridDim.x) * blockDim.x / warp_lanes;
};

}  // namespace headrace::kernels
