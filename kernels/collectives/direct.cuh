// SPDX-License-Identifier: Apache-2.0
// Parts in memory that all ranks map: a rank reads the others' parts where they lie, and writes to where they
// shall be. No byte goes through a box.
//
// All ranks first tell one another where their parts are. If one of them cannot, all parts travel in chunks.
// A block then moves its units of all parts, tells the same block of all ranks, and waits for it: so no rank
// ends before its memory has been read and written. A rank that gives up takes its places back, and no other
// one begins to use them.
#pragma once

#include "kernels/collectives/chunks.cuh"

namespace headrace::kernels::collectives {

/// Where this rank sees the parts of all ranks.
struct Reached {
  uint64_t sends[most_ranks], receives[most_ranks];
};

/// Units that a thread has read before it writes the first one.
constexpr unsigned direct_units = 4;

class Direct {
 public:
  /// `reached`: of the block.
  __device__ Direct(const Launch& args, Turn& turn, Reached& reached)
      : args_(args), turn_(turn), reached_(reached) {}

  /// Tells a rank where this one's parts are. What launches before this one wrote comes first.
  __device__ void tell_places(unsigned rank) const {
    __threadfence_system();
    const uint64_t at = places(rank, args_.rank);
    store_packet(at, {args_.send_at[rank], turn_.epoch()});
    store_packet(at + sizeof(Packet), {args_.receive_at[rank], turn_.epoch()});
  }
  /// By all threads: finds the places of all ranks, whose memory all threads then see. False: the launch ends
  /// early.
  [[nodiscard]] __device__ bool find_places() {
    return all_good(threadIdx.x >= warp_lanes || find_places_of(threadIdx.x));
  }
  /// By all threads: whether all ranks have given their places.
  [[nodiscard]] __device__ bool reaches_all() const {
    const unsigned rank = threadIdx.x;
    return all_good(rank >= args_.shape.ranks || (reached_.sends[rank] != 0 && reached_.receives[rank] != 0));
  }
  /// By all threads, when the block has moved its units: waits for the same block of all ranks. False: the
  /// launch ends early.
  [[nodiscard]] __device__ bool meet() {
    __syncthreads();  // all threads' bytes come before the word
    return all_good(meet_block_of(threadIdx.x));
  }
  /// By all threads of a block that ends early: no rank that has not begun to move its units does so now.
  __device__ void take_places_back() const {
    const unsigned rank = threadIdx.x;
    if (!is_peer(rank)) return;
    const uint64_t at = places(rank, args_.rank);
    store_packet(at, {});
    store_packet(at + sizeof(Packet), {});
  }

 private:
  [[nodiscard]] __device__ bool is_peer(unsigned rank) const {
    return rank < args_.shape.ranks && rank != args_.rank;
  }
  [[nodiscard]] __device__ uint64_t places(unsigned in_box_of, unsigned of) const {
    const auto row = static_cast<unsigned>(turn_.epoch() & 1);
    return turn_.box(in_box_of) + Header::places_at + (row * most_ranks + of) * sizeof(Places);
  }
  /// By a warp, a rank for each lane. One look must find the places of all: a rank that has given up has
  /// taken its places back.
  [[nodiscard]] __device__ bool find_places_of(unsigned rank) {
    Packet sends{}, receives{};
    bool has_told;
    do {
      has_told = true;
      if (is_peer(rank)) {
        const uint64_t at = places(args_.rank, rank);
        receives = load_packet(at + sizeof(Packet));
        sends = acquire_packet(at);
        has_told = sends.epoch == turn_.epoch() && receives.epoch == turn_.epoch();
      }
      if (__any_sync(all_lanes, !has_told && turn_.gives_up(rank))) return false;
    } while (!__all_sync(all_lanes, has_told));
    if (rank == args_.rank) {
      sends.data = args_.send_at[rank] != 0 ? args_.own.address | 1 : 0;
      receives.data = args_.receive_at[rank] != 0 ? args_.receives[rank].address | 1 : 0;
    }
    if (rank < args_.shape.ranks) reached_.sends[rank] = sends.data, reached_.receives[rank] = receives.data;
    return true;
  }
  [[nodiscard]] __device__ bool meet_block_of(unsigned rank) {
    if (!is_peer(rank)) return true;
    const uint64_t key = chunk_key(turn_.epoch(), 0);
    release(turn_.box(rank) + args_.shape.came(Way::results, args_.rank, blockIdx.x), key);
    while (acquire(turn_.own_box() + args_.shape.came(Way::results, rank, blockIdx.x)) != key)
      if (turn_.gives_up(rank)) return false;
    return true;
  }

  const Launch& args_;
  Turn& turn_;
  Reached& reached_;
};

/// The units of a part that this thread moves: every `step` bytes one.
struct Units {
  uint64_t first = (static_cast<uint64_t>(blockIdx.x) * chunk_threads + threadIdx.x) * unit_bytes;
  uint64_t step = static_cast<uint64_t>(gridDim.x) * chunk_threads * unit_bytes;
};

__device__ __forceinline__ Unit load_far_unit(uint64_t address) {
  const uint4 v = load<0, Hint::no_allocate>(reinterpret_cast<const uint4*>(address));
  return {{v.x | static_cast<uint64_t>(v.y) << 32, v.z | static_cast<uint64_t>(v.w) << 32}};
}

/// Every rank's parts go to their ranks, where they shall be.
struct ExchangeDirect {
  __device__ void operator()(const Launch& args, const Reached& reached) const {
#pragma unroll 1
    for (unsigned i = 1; i <= args.shape.ranks; ++i) {
      const unsigned to = rank_after(args, i);  // its own part comes last
      const uint64_t target = reached.receives[to] & ~uint64_t{1};
      if (target != args.sends[to].address) copy(args.sends[to], target);
    }
  }

 private:
  __device__ static void copy(const Part& from, uint64_t to) {
    const Units units;
#pragma unroll 1
    for (uint64_t at = units.first; at < from.bytes; at += direct_units * units.step) {
      Unit held[direct_units];
#pragma unroll
      for (unsigned i = 0; i < direct_units; ++i)
        if (at + i * units.step < from.bytes) held[i] = load_far_unit(from.address + at + i * units.step);
#pragma unroll
      for (unsigned i = 0; i < direct_units; ++i)
        if (at + i * units.step < from.bytes) store_unit(to + at + i * units.step, held[i]);
    }
  }
};

/// Every rank reads its part of all ranks and reduces it; if they share, it writes the result to all.
template <class Sum>
struct ReduceDirect {
  __device__ void operator()(const Launch& args, const Reached& reached) const {
    constexpr unsigned batch = 4, side = 2;  // ranks, and units, that a thread reads together
    const Units units;
    const uint64_t bytes = args.result.bytes;
#pragma unroll 1
    for (uint64_t at = units.first; at < bytes; at += side * units.step) {
      Sum sums[side] = {Sum(args), Sum(args)};
#pragma unroll 1
      for (unsigned from = 0; from < args.shape.ranks; from += batch) {
        Unit held[batch][side];
#pragma unroll
        for (unsigned i = 0; i < batch; ++i)
#pragma unroll
          for (unsigned s = 0; s < side; ++s)
            if (from + i < args.shape.ranks && at + s * units.step < bytes)
              held[i][s] = load_far_unit((reached.sends[from + i] & ~uint64_t{1}) + at + s * units.step);
#pragma unroll
        for (unsigned i = 0; i < batch; ++i)
#pragma unroll
          for (unsigned s = 0; s < side; ++s)
            if (from + i < args.shape.ranks) sums[s].put(from + i, held[i][s].words);
      }
#pragma unroll
      for (unsigned s = 0; s < side; ++s) {
        const uint64_t place = at + s * units.step;
        if (place < bytes) finish(args, reached, place, sums[s]);
      }
    }
  }

 private:
  __device__ static void finish(const Launch& args, const Reached& reached, uint64_t at, Sum& sum) {
    Unit result;
    sum.result(result.words);
    store_unit(args.result.address + at, result);
    if (args.shares == 0) return;
#pragma unroll 4
    for (unsigned i = 1; i < args.shape.ranks; ++i)
      store_unit((reached.receives[rank_after(args, i)] & ~uint64_t{1}) + at, result);
  }
};

/// A launch whose parts go directly if all ranks can, else in chunks.
template <class Move, class Rounds>
__device__ __forceinline__ void run_direct(const Launch& args) {
  __shared__ Reached reached;
  Turn turn(args);
  Direct direct(args, turn, reached);
  bool is_good = all_good(turn.begin([&](unsigned rank) { direct.tell_places(rank); }));
  if (is_good) is_good = direct.find_places();
  if (is_good && direct.reaches_all()) {
    Move()(args, reached);
    is_good = direct.meet();
  } else if (is_good) {
    is_good = Rounds()(args, turn);
  }
  if (!is_good) direct.take_places_back();
  turn.end(is_good);
}

}  // namespace headrace::kernels::collectives
