// SPDX-License-Identifier: Apache-2.0
// How a warp moves bytes between any two addresses, and how the blocks of a launch share a list of pages.
//
// What limits a copy over NVLink or PCIe is how many bytes are on their way at once: each lane has `Unroll`
// loads of 16 bytes in flight before its first store, so a warp has 4 KiB with Unroll 8. A tile is what a
// warp moves in one such step.
#pragma once

#include <headrace/plugin/kernels_v1.h>

namespace headrace::kernels {

constexpr unsigned warp_lanes = 32;
constexpr unsigned vector_bytes = 16;
constexpr unsigned row_bytes = warp_lanes * vector_bytes;  // one vector of every lane
constexpr unsigned all_lanes = 0xffffffffu;

/// What caches are told of bytes that pass through once; `strong`: loads see what is there now, whatever was
/// cached before.
enum class Hint { plain, streaming, no_allocate, strong };

// How pages travel: what was measured best.
constexpr int page_unroll = 8;
constexpr Hint page_hint = Hint::no_allocate;

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
      // Lane 0 offers the first vector of the next row, which lane 31 wants; nobody else wants lane 0's.
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

/// A stretch of a page: bytes [begin, end) of a page of page_bytes bytes. `begin` is 0 or such that its
/// target is aligned.
struct Stretch {
  unsigned long long source, target, page_bytes, begin, end;
};

/// Any alignment and length. Vectors are read only where all 16 bytes belong to the page; the rest goes byte
/// by byte.
template <int Unroll, Hint hint>
__device__ __forceinline__ void move_stretch(const Stretch& part, unsigned lane) {
  unsigned long long left = part.end - part.begin;
  unsigned long long source = part.source + part.begin, target = part.target + part.begin;
  unsigned head = static_cast<unsigned>(0 - target) & (vector_bytes - 1);
  const unsigned shift = static_cast<unsigned>(source + head) & (vector_bytes - 1);
  if (source + head - shift < part.source) head += vector_bytes;  // that vector would begin before the page
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
      const unsigned long long whole = (part.source + part.page_bytes - (source - shift)) / vector_bytes;
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

__device__ __forceinline__ unsigned long long page_address(const headrace_move_side_v1& side,
                                                           unsigned long long page) {
  const auto* indices = reinterpret_cast<const unsigned*>(side.indices);
  const auto* base_of = reinterpret_cast<const unsigned*>(side.base_of);
  const auto* bases = reinterpret_cast<const unsigned long long*>(side.bases);
  const unsigned long long number = indices != nullptr ? __ldg(indices + page) : page;
  const unsigned long long base = base_of != nullptr ? __ldg(bases + __ldg(base_of + page)) : side.base;
  return base + number * side.stride;
}

/// The pages of a launch as its arguments say: the host has checked them.
class ToldPages {
 public:
  using Args = headrace_move_pages_v1;
  __device__ explicit ToldPages(const headrace_move_pages_v1& args) : args_(args) {}
  [[nodiscard]] __device__ unsigned long long count() const { return args_.count; }
  [[nodiscard]] __device__ unsigned long long bytes() const { return args_.page_bytes; }
  /// Where a page lies on both sides. False: it is to be passed over, and both are 0.
  __device__ bool find(unsigned long long page, unsigned long long& source,
                       unsigned long long& target) const {
    source = page_address(args_.source, page);
    target = page_address(args_.target, page);
    return true;
  }

 private:
  const headrace_move_pages_v1& args_;
};

/// Pages whose numbers, and how many they are, stand in a table that may hold anything by now.
class CheckedPages {
 public:
  using Args = headrace_move_pages_v1;
  __device__ explicit CheckedPages(const headrace_move_pages_v1& args)
      : args_(args), bounds_(*reinterpret_cast<const headrace_move_bounds_v1*>(args.bounds)) {}
  [[nodiscard]] __device__ unsigned long long count() const {
    return bounds_.count < args_.count ? bounds_.count : args_.count;
  }
  [[nodiscard]] __device__ unsigned long long bytes() const { return args_.page_bytes; }
  __device__ bool find(unsigned long long page, unsigned long long& source,
                       unsigned long long& target) const {
    const bool good = is_below(args_.source, page, bounds_.source_pages, 1) &&
                      is_below(args_.target, page, bounds_.target_pages, 2);
    source = good ? page_address(args_.source, page) : 0;
    target = good ? page_address(args_.target, page) : 0;
    return good;
  }

 private:
  __device__ bool is_below(const headrace_move_side_v1& side, unsigned long long page,
                           unsigned long long pages, unsigned which) const {
    if (__ldg(reinterpret_cast<const unsigned*>(side.indices) + page) < pages) return true;
    // Seen by whoever sees the end of the launch: tell_done's fence comes behind it.
    *reinterpret_cast<volatile unsigned long long*>(args_.refused) = 2 * page + which;
    return false;
  }

  const headrace_move_pages_v1& args_;
  const headrace_move_bounds_v1 bounds_;
};

/// The warps of a launch, numbered through.
struct WarpPlace {
  unsigned lane = threadIdx.x % warp_lanes;
  unsigned long long number =
      (static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x) / warp_lanes;
  unsigned long long count = static_cast<unsigned long long>(gridDim.x) * blockDim.x / warp_lanes;
};

/// Walks the tiles of a list of pages that fall to one warp: every count-th, so that neighbours run at the
/// same time.
struct TileWalk {
  unsigned long long page;
  unsigned tile;  // of the page
  unsigned tiles_per_page;
  unsigned long long page_step;
  unsigned tile_step;

  __device__ TileWalk(const WarpPlace& warp, unsigned tiles)
      : page(warp.number / tiles),
        tile(static_cast<unsigned>(warp.number % tiles)),
        tiles_per_page(tiles),
        page_step(warp.count / tiles),
        tile_step(static_cast<unsigned>(warp.count % tiles)) {}
  __device__ void next() {  // no division: additions and a carry
    page += page_step;
    tile += tile_step;
    if (tile >= tiles_per_page) tile -= tiles_per_page, ++page;
  }
};

/// Pages of any length and alignment. Tiles are cut where the target is aligned, so only a page's ends go by
/// bytes.
template <int Unroll, Hint hint, class Pages>
__device__ __forceinline__ void move_any_pages(const typename Pages::Args& args) {
  constexpr unsigned tile_bytes = row_bytes * Unroll;
  const WarpPlace warp;
  const Pages pages(args);
  const unsigned tiles =
      static_cast<unsigned>((pages.bytes() + vector_bytes - 1 + tile_bytes - 1) / tile_bytes);
  for (TileWalk at(warp, tiles); at.page < pages.count(); at.next()) {
    Stretch part{0, 0, pages.bytes(), 0, pages.bytes()};
    if (!pages.find(at.page, part.source, part.target)) continue;
    const unsigned long long first = static_cast<unsigned long long>(at.tile) * tile_bytes;
    const unsigned skew = static_cast<unsigned>(part.target) & (vector_bytes - 1);
    if (at.tile != 0) part.begin = first - skew;
    if (part.begin >= part.page_bytes) continue;
    if (first + tile_bytes - skew < part.page_bytes) part.end = first + tile_bytes - skew;
    move_stretch<Unroll, hint>(part, warp.lane);
  }
}

/// Pages of whole tiles or more, all on both sides aligned. The next page's addresses are fetched while this
/// one travels.
template <int Unroll, Hint hint, class Pages>
__device__ __forceinline__ void move_aligned_pages(const typename Pages::Args& args) {
  constexpr unsigned tile_bytes = row_bytes * Unroll;
  const WarpPlace warp;
  const Pages pages(args);
  const unsigned tiles = static_cast<unsigned>((pages.bytes() + tile_bytes - 1) / tile_bytes);
  TileWalk at(warp, tiles);
  if (at.page >= pages.count()) return;
  unsigned long long source, target;
  bool is_here = pages.find(at.page, source, target);
  for (;;) {
    const unsigned long long first = static_cast<unsigned long long>(at.tile) * tile_bytes;
    const unsigned long long left = pages.bytes() - first;
    const auto* from = reinterpret_cast<const uint4*>(source + first);
    auto* to = reinterpret_cast<uint4*>(target + first);
    const unsigned long long page = at.page;
    at.next();
    const bool more = at.page < pages.count();
    const bool is_next = more && at.page != page;
    if (!is_here) {
      if (is_next) is_here = pages.find(at.page, source, target);
    } else if (left >= tile_bytes) {
      uint4 held[Unroll];
      each<Unroll>([&]<int i>() { held[i] = load<i, hint>(from + warp.lane); });
      if (is_next) is_here = pages.find(at.page, source, target);
      each<Unroll>([&]<int i>() { store<i, hint>(to + warp.lane, held[i]); });
    } else {
      move_vectors<Unroll, hint>(from, to, left / vector_bytes, warp.lane);
      if (is_next) is_here = pages.find(at.page, source, target);
    }
    if (!more) return;
  }
}

/// Pages smaller than a tile, all aligned: a tile is vectors of several pages, so that as many bytes travel
/// as with large ones.
template <int Unroll, Hint hint, class Pages>
__device__ __forceinline__ void move_small_pages(const typename Pages::Args& args) {
  constexpr unsigned tile = warp_lanes * Unroll;
  const WarpPlace warp;
  const Pages pages(args);
  const unsigned per_page = static_cast<unsigned>(pages.bytes() / vector_bytes);
  const unsigned long long total = pages.count() * per_page;
  for (unsigned long long first = warp.number * tile; first < total; first += warp.count * tile) {
    uint4 held[Unroll];
    uint4* to[Unroll];
    const unsigned long long page0 = first / per_page;
    const unsigned skip = static_cast<unsigned>(first - page0 * per_page);
    each<Unroll>([&]<int i>() {
      const unsigned at = skip + i * warp_lanes + warp.lane;  // vectors from the beginning of page0
      const unsigned long long page = page0 + at / per_page;
      to[i] = nullptr;
      unsigned long long source, target;
      if (page >= pages.count() || !pages.find(page, source, target)) return;
      const unsigned offset = at % per_page;
      to[i] = reinterpret_cast<uint4*>(target) + offset;
      held[i] = load<0, hint>(reinterpret_cast<const uint4*>(source) + offset);
    });
    each<Unroll>([&]<int i>() {
      if (to[i] != nullptr) store<0, hint>(to[i], held[i]);
    });
  }
}

/// Pages smaller than a tile whose length is a multiple of a row: lane i finds out where row i of the warp's
/// next tile lies, while the present one travels, and tells the others. No division and no index is looked up
/// twice.
template <int Unroll, Hint hint, class Pages>
__device__ __forceinline__ void move_row_pages(const typename Pages::Args& args) {
  const WarpPlace warp;
  const Pages pages(args);
  const unsigned per_page = static_cast<unsigned>(pages.bytes() / row_bytes);
  const unsigned long long total = pages.count() * per_page;
  unsigned long long source = 0, target = 0;  // of lane i's row; 0: there is none
  const auto look_up = [&](unsigned long long first) {
    const unsigned long long row = first + warp.lane;
    source = target = 0;
    if (warp.lane >= Unroll || row >= total) return;
    const unsigned long long page = row / per_page;
    const unsigned long long skip = (row - page * per_page) * row_bytes;
    unsigned long long from, to;
    if (pages.find(page, from, to)) source = from + skip, target = to + skip;
  };
  look_up(warp.number * Unroll);
  for (unsigned long long first = warp.number * Unroll; first < total; first += warp.count * Unroll) {
    uint4 held[Unroll];
    uint4* to[Unroll];
    each<Unroll>([&]<int i>() {
      const auto* const from = reinterpret_cast<const uint4*>(__shfl_sync(all_lanes, source, i));
      to[i] = reinterpret_cast<uint4*>(__shfl_sync(all_lanes, target, i));
      if (from != nullptr) held[i] = load<0, hint>(from + warp.lane);
    });
    look_up(first + warp.count * Unroll);
    each<Unroll>([&]<int i>() {
      if (to[i] != nullptr) store<0, hint>(to[i] + warp.lane, held[i]);
    });
  }
}

/// Parts of any length, each of one warp.
template <int Unroll, Hint hint>
__device__ __forceinline__ void move_part_list(const headrace_move_parts_v1& args) {
  const WarpPlace warp;
  const auto* sources = reinterpret_cast<const unsigned long long*>(args.sources);
  const auto* targets = reinterpret_cast<const unsigned long long*>(args.targets);
  const auto* lengths = reinterpret_cast<const unsigned*>(args.lengths);
  for (unsigned long long i = warp.number; i < args.count; i += warp.count) {
    const unsigned length = __ldg(lengths + i);
    move_stretch<Unroll, hint>(
        {args.source_base + __ldg(sources + i), args.target_base + __ldg(targets + i), length, 0, length},
        warp.lane);
  }
}

/// The bytes come before, those of other threads by the barrier that they and this one have passed. Pairs
/// with the acquire of whoever waits for the word. A fence besides would cost a part of a microsecond.
__device__ __forceinline__ void tell(uint64_t* word, unsigned long long value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/// Tells the end of the move, if anybody is to be told. Every thread of every block comes here last.
__device__ __forceinline__ void tell_done(const headrace_move_done_v1& done) {
  if (done.word == 0) return;
  __syncthreads();  // the block's stores come before what thread 0 tells
  if (threadIdx.x != 0) return;
  auto* const state = reinterpret_cast<headrace_move_state_v1*>(done.state);
  unsigned long long value = done.value;
  if (gridDim.x > 1) {
    // Pairs with the other blocks' fences: who arrives last has all blocks' bytes behind it.
    __threadfence_system();
    if (atomicAdd(&state->arrived, 1) + 1 != gridDim.x) return;
    state->arrived = 0;
    __threadfence_system();
  }
  if (value == 0) value = ++state->launches;
  tell(reinterpret_cast<uint64_t*>(done.word), value);
}

}  // namespace headrace::kernels
