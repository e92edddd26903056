// SPDX-License-Identifier: Apache-2.0
// Rows, moved and added by a warp. Lists of up to 32 rows are in its lanes: lane i has the address of row i,
// or 0: there is none.
#pragma once

#include "kernels/moe/turn.cuh"

namespace headrace::kernels::moe {

/// The vectors of a part that a lane moves, `Unroll` of them before the next tile of the warp.
template <unsigned Unroll>
class LaneVectors {
 public:
  __device__ explicit LaneVectors(Share share)
      : at_(static_cast<uint32_t>(share.begin)), end_(static_cast<uint32_t>(share.end)) {}

  [[nodiscard]] __device__ bool has_tile() const { return at_ < end_; }
  __device__ void next() { at_ += Unroll * warp_lanes; }
  /// Whether the lane has a vector number `u` in this tile, its number in the row, and its offset.
  [[nodiscard]] __device__ bool has(unsigned u) const { return at_ + lane() + u * warp_lanes < end_; }
  [[nodiscard]] __device__ uint64_t index(unsigned u) const { return at_ + lane() + u * warp_lanes; }
  [[nodiscard]] __device__ uint64_t offset(unsigned u) const {
    return uint64_t{at_ + lane()} * vector_bytes + u * (warp_lanes * vector_bytes);
  }

 private:
  uint32_t at_, end_;
};

/// A part of one row to the same part of each row of the list. `share`: of vectors.
__device__ __forceinline__ void copy_to_all(uint64_t from, uint64_t to, unsigned count, Share share) {
  constexpr unsigned unroll = 14;  // two tiles of a row of 14 KiB; more would not fit the registers
  for (LaneVectors<unroll> mine(share); mine.has_tile(); mine.next()) {
    Vector held[unroll];
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u)
      if (mine.has(u)) held[u] = load(from + mine.offset(u));
    for (unsigned i = 0; i < count; ++i) {
      const uint64_t target = __shfl_sync(all_lanes, to, i);
      if (target == 0) continue;
#pragma unroll
      for (unsigned u = 0; u < unroll; ++u)
        if (mine.has(u)) store(target + mine.offset(u), held[u]);
    }
  }
}

/// Units of one row to the same units of each row of the list. They may lie at any strides. `share`: of
/// units.
template <class Unit>
__device__ __forceinline__ void copy_units(uint64_t from, int64_t from_stride, uint64_t to, int64_t to_stride,
                                           unsigned count, Share share) {
#pragma unroll 1  // columns are few bytes: their code stays small
  for (uint64_t tile = share.begin; tile < share.end; tile += warp_lanes) {
    const uint64_t unit = tile + lane();
    const bool is_unit = unit < share.end;
    Unit held{};
    if (is_unit) held = *at<const Unit>(from + unit * static_cast<uint64_t>(from_stride));
#pragma unroll 1
    for (unsigned i = 0; i < count; ++i) {
      const uint64_t target = __shfl_sync(all_lanes, to, i);
      if (target != 0 && is_unit) *at<Unit>(target + unit * static_cast<uint64_t>(to_stride)) = held;
    }
  }
}

/// Where the units of a row begin, and how far they are apart.
struct UnitRow {
  uint64_t at;
  int64_t stride;
};
__device__ __forceinline__ void copy_column(UnitRow from, UnitRow to, unsigned count, Share units,
                                            uint32_t unit_bytes) {
  switch (unit_bytes) {
    case 16:
      return copy_units<Vector>(from.at, from.stride, to.at, to.stride, count, units);
    case 8:
      return copy_units<uint64_t>(from.at, from.stride, to.at, to.stride, count, units);
    case 4:
      return copy_units<uint32_t>(from.at, from.stride, to.at, to.stride, count, units);
    case 2:
      return copy_units<uint16_t>(from.at, from.stride, to.at, to.stride, count, units);
    default:
      return copy_units<uint8_t>(from.at, from.stride, to.at, to.stride, count, units);
  }
}
/// Zeros in the units of a row.
__device__ __forceinline__ void zero_column(UnitRow to, uint32_t units, uint32_t unit_bytes) {
  for (uint64_t i = lane(); i < uint64_t{units} * unit_bytes; i += warp_lanes)
    *at<uint8_t>(to.at + i / unit_bytes * static_cast<uint64_t>(to.stride) + i % unit_bytes) = 0;
}

struct Float32 {
  static constexpr unsigned elements = 4;  // of a vector
  static __device__ __forceinline__ float element(const Vector& v, unsigned i) {
    return float_of(v.words[i]);
  }
  static __device__ __forceinline__ uint32_t word(const float* values, unsigned i) {
    return bits_of(values[i]);
  }
};
struct Float16 {
  static constexpr unsigned elements = 8;
  static __device__ __forceinline__ float element(const Vector& v, unsigned i) {
    return from_half(v.words[i / 2] >> (i % 2 * 16) & 0xffff);
  }
  static __device__ __forceinline__ uint32_t word(const float* values, unsigned i) {
    return two_halves(values[2 * i], values[2 * i + 1]);
  }
};
struct BFloat16 {
  static constexpr unsigned elements = 8;
  static __device__ __forceinline__ float element(const Vector& v, unsigned i) {
    return float_of(i % 2 == 0 ? v.words[i / 2] << 16 : v.words[i / 2] & 0xffff0000);
  }
  static __device__ __forceinline__ uint32_t word(const float* values, unsigned i) {
    return two_bfloats(values[2 * i], values[2 * i + 1]);
  }
};

/// Rows of a type as they are.
template <class Type>
struct PlainRow {
  using Held = Vector;
  static __device__ __forceinline__ Held load(uint64_t row, uint64_t index, uint64_t) {
    return moe::load(row + index * vector_bytes);
  }
  static __device__ __forceinline__ float element(const Held& held, unsigned e) {
    return Type::element(held, e);
  }
};

/// Sums of so many vectors in float32, as src/moe/sums.hpp makes them: it begins with its first term.
template <class Type, unsigned Vectors>
class VectorSums {
 public:
  template <class Row>
  __device__ void add(const typename Row::Held (&terms)[Vectors], float weight) {
#pragma unroll
    for (unsigned i = 0; i < Vectors; ++i)
#pragma unroll
      for (unsigned e = 0; e < Type::elements; ++e) {
        const float term = product(weight, Row::element(terms[i], e));
        sums_[i][e] = is_empty_ ? term : sum(sums_[i][e], term);
      }
    is_empty_ = false;
  }
  [[nodiscard]] __device__ float value(unsigned i, unsigned e) const { return is_empty_ ? 0 : sums_[i][e]; }
  [[nodiscard]] __device__ Vector result(unsigned i) const {
    Vector made{};
    if (is_empty_) return made;
#pragma unroll
    for (unsigned w = 0; w < 4; ++w) made.words[w] = Type::word(sums_[i], w);
    return made;
  }

 private:
  float sums_[Vectors][Type::elements];
  bool is_empty_ = true;
};

/// What is added after the rows of a list, in this order. 0: nothing.
struct LastTerms {
  uint64_t of[3];
};

/// A part of the weighted sum of the rows of a list: `store(sums, which)` gets the sums of a tile after
/// another.
///   Unroll         vectors of a thread that it reads together
///   share          of vectors
///   scales_behind  the scales of a row of blocks lie so far behind its begin
template <class Type, class Row, unsigned Unroll, class Store>
__device__ __forceinline__ void sum_rows(uint64_t from, float weight, unsigned count, const LastTerms& last,
                                         uint64_t scales_behind, Share share, const Store& store) {
  constexpr unsigned unroll = Unroll, batch = 2;  // batch: rows that a thread reads together
  for (LaneVectors<unroll> mine(share); mine.has_tile(); mine.next()) {
    VectorSums<Type, unroll> sums;
    for (unsigned i = 0; i < count; i += batch) {
      typename Row::Held held[batch][unroll];
      uint64_t row[batch];
      float factor[batch];
#pragma unroll
      for (unsigned b = 0; b < batch; ++b) {
        row[b] = __shfl_sync(all_lanes, from, (i + b) % warp_lanes);
        factor[b] = __shfl_sync(all_lanes, weight, (i + b) % warp_lanes);
        if (i + b >= count) row[b] = 0;
#pragma unroll
        for (unsigned u = 0; u < unroll; ++u)
          if (row[b] != 0 && mine.has(u)) held[b][u] = Row::load(row[b], mine.index(u), scales_behind);
      }
#pragma unroll
      for (unsigned b = 0; b < batch; ++b)
        if (row[b] != 0) sums.template add<Row>(held[b], factor[b]);
    }
#pragma unroll 1
    for (unsigned t = 0; t < 3; ++t) {
      if (last.of[t] == 0) continue;
      Vector term[unroll];
#pragma unroll
      for (unsigned u = 0; u < unroll; ++u)
        if (mine.has(u)) term[u] = load(last.of[t] + mine.offset(u));
      sums.template add<PlainRow<Type>>(term, 1);
    }
    store(sums, mine);
  }
}

/// Tiles of sums, rounded to their type. `targets` calls its argument with each row that they go to.
template <class Type, unsigned Vectors, class Targets>
__device__ __forceinline__ void store_sums(const VectorSums<Type, Vectors>& sums,
                                           const LaneVectors<Vectors>& mine, const Targets& targets) {
  Vector made[Vectors];
#pragma unroll
  for (unsigned u = 0; u < Vectors; ++u) made[u] = sums.result(u);
  targets([&](uint64_t to) {
#pragma unroll
    for (unsigned u = 0; u < Vectors; ++u)
      if (mine.has(u)) store(to + mine.offset(u), made[u]);
  });
}

/// Zeros. `bytes`: a multiple of 4.
__device__ __forceinline__ void zero_row(uint64_t to, uint64_t bytes) {
  for (uint64_t i = lane() * 4; i < bytes; i += warp_lanes * 4) *at<uint32_t>(to + i) = 0;
}

/// The ranks that a token goes to, one for each lane.
struct Visit {
  unsigned rank = 0;
  uint32_t slot = 0;
  unsigned count;  ///< of the token; the same in all lanes
  bool is_one;     ///< this lane has one

  __device__ Visit(const Common& args, const RouteLists& lists, uint64_t token) {
    const uint64_t ranks = *at<const uint64_t>(lists.ranks + token * 8);
    count = static_cast<unsigned>(__popcll(ranks));
    is_one = lane() < count;
    uint64_t rest = ranks;
    for (unsigned i = 0; i < count; ++i, rest &= rest - 1)
      if (i == lane()) rank = static_cast<unsigned>(__ffsll(static_cast<long long>(rest)) - 1);
    if (is_one) slot = *at<const uint32_t>(lists.slots + (token * args.visits + lane()) * 4);
  }
};

/// The chunks that come of each source, in an order in which each source's n-th comes before the n+1-th of
/// any. A warp asks together.
class ChunkList {
 public:
  /// `records`: of each source, in shared memory.
  __device__ ChunkList(const uint32_t* records, unsigned ranks) : records_(records) {
    low_ = lane() < ranks ? static_cast<uint32_t>(chunks_of(records[lane()])) : 0;
    high_ = warp_lanes + lane() < ranks ? static_cast<uint32_t>(chunks_of(records[warp_lanes + lane()])) : 0;
    const uint32_t all = (lane() < ranks ? records[lane()] : 0) +
                         (warp_lanes + lane() < ranks ? records[warp_lanes + lane()] : 0);
    most_ = __reduce_max_sync(all_lanes, low_ > high_ ? low_ : high_);
    count_ = __reduce_add_sync(all_lanes, low_ + high_);
    records_of_all_ = __reduce_add_sync(all_lanes, all);
  }

  struct Slot {
    unsigned source;
    uint32_t slot;
    uint32_t records;  ///< of the source: a slot behind them has none
  };
  [[nodiscard]] __device__ uint64_t slots() const { return uint64_t{count_} * chunk_slots; }
  [[nodiscard]] __device__ uint32_t records() const { return records_of_all_; }
  /// Slot number `i` of slots().
  [[nodiscard]] __device__ Slot slot(uint64_t i) const {
    const auto number = static_cast<uint32_t>(i / chunk_slots);
    uint32_t chunk = 0, end = most_;  // before(chunk) <= number < before(end)
    while (end - chunk > 1) {
      const uint32_t middle = chunk + (end - chunk) / 2;
      (before(middle) <= number ? chunk : end) = middle;
    }
    const uint64_t low = __ballot_sync(all_lanes, low_ > chunk),
                   high = __ballot_sync(all_lanes, high_ > chunk);
    uint64_t sources = low | high << warp_lanes;
    for (uint32_t skip = number - before(chunk); skip != 0; --skip) sources &= sources - 1;
    const auto source = static_cast<unsigned>(__ffsll(static_cast<long long>(sources)) - 1);
    return {source, chunk * chunk_slots + static_cast<uint32_t>(i % chunk_slots), records_[source]};
  }

 private:
  /// Chunks whose number among those of their source is below that.
  [[nodiscard]] __device__ uint32_t before(uint32_t chunk) const {
    return __reduce_add_sync(all_lanes, (low_ < chunk ? low_ : chunk) + (high_ < chunk ? high_ : chunk));
  }

  const uint32_t* records_;
  uint32_t low_, high_, most_, count_, records_of_all_;
};

/// Units that warps take in turn, the first ones by their place in the launch.
class Units {
 public:
  /// `from_the_start`: blocks begin at very different times, so even the first ones are taken in turn.
  __device__ Units(const Turn& turn, uint64_t count, bool from_the_start) : turn_(turn), count_(count) {
    const uint64_t warps = uint64_t{gridDim.x} * block_warps;
    skipped_ = from_the_start ? 0 : warps;
    next_ = from_the_start ? take() : uint64_t{blockIdx.x} * block_warps + warp();
  }
  /// By a warp. False: there is none.
  [[nodiscard]] __device__ bool next(uint64_t& unit) {
    unit = __shfl_sync(all_lanes, next_, 0);
    if (unit >= count_) return false;
    if (count_ > skipped_)
      next_ = take();  // it comes while the unit is worked on
    else
      next_ = count_;
    return true;
  }

 private:
  /// Of use in lane 0.
  [[nodiscard]] __device__ uint64_t take() const {
    return lane() == 0 ? skipped_ + add_wide(turn_.state(offsetof(State, next)), 1) : 0;
  }

  const Turn& turn_;
  const uint64_t count_;
  uint64_t skipped_, next_;
};

/// By one thread of a unit, behind all of its bytes. The one that ends the `units` of a chunk of a rank calls
/// tell(), which sets the chunk's flag: the units of other warps come before it, too.
template <class Tell>
__device__ __forceinline__ void end_unit(const Common& args, unsigned rank, uint64_t chunk, uint64_t units,
                                         const Tell& tell) {
  fence_system();  // pairs with the acquire of the chunk's flag, over the counter
  const uint64_t counter = args.done_at(rank, chunk);
  if (add(counter, 1) + 1 != units) return;
  fence_system();
  tell();
  *at<uint32_t>(counter) = 0;  // for the next launch; before the fence, that would wait for it
}
__device__ __forceinline__ uint64_t slots_in_chunk(uint64_t chunk, uint64_t records) {
  const uint64_t left = records - chunk * chunk_slots;
  return left < chunk_slots ? left : chunk_slots;
}

/// By a warp: the ranks that have taken what this one sent two operations ago.
__device__ __forceinline__ uint64_t ranks_with_room(const Common& args, Turn& turn, size_t taken) {
  const auto has_room = [&](unsigned rank) {
    return rank < args.window.ranks && turn.is_active(rank) &&
           turn.waits_for({rank, HEADRACE_MOE_ROOM, args.own_window() + args.window.words_at(rank) + taken,
                           turn.sends()});
  };
  const bool low = has_room(lane()), high = has_room(warp_lanes + lane());
  __syncwarp();
  const uint64_t low_bits = __ballot_sync(all_lanes, low), high_bits = __ballot_sync(all_lanes, high);
  return low_bits | high_bits << warp_lanes;
}

}  // namespace headrace::kernels::moe
