// SPDX-License-Identifier: Apache-2.0
// Parts that travel in chunks: a block puts a chunk into its slot of the other rank's box and then says that
// it has come; a block of that rank takes it out and says that the slot is free.
//
// A block works in rounds: in each it sends a chunk, takes the one that came in the round before, and keeps
// the result before that. It waits once at the beginning of a round and tells once at its end: a fence that
// other GPUs see takes as long as a chunk.
#pragma once

#include "kernels/collectives/memory.cuh"
#include "kernels/collectives/splits.cuh"
#include "kernels/collectives/sums.cuh"
#include "kernels/collectives/turn.cuh"
#include "kernels/common/warp_copy.cuh"

namespace headrace::kernels::collectives {

constexpr unsigned chunk_warps = chunk_threads / warp_lanes;
static_assert(most_ranks <= warp_lanes && chunk_warps >= 4, "a lane for each rank in each of four warps");

/// By all threads of a block: whether none has given up. Then each sees what those that waited have seen.
[[nodiscard]] __device__ __forceinline__ bool all_good(bool is_good) {
  return __syncthreads_and(is_good) != 0;
}

/// The block moves a run. Takes and returns how many parts of runs its warps have been dealt. A call of its
/// own, so that it does not share registers with what its callers hold.
static __device__ __noinline__ unsigned deal(uint64_t source, uint64_t target, unsigned bytes,
                                             unsigned dealt) {
  deal_run<4, 4 * row_bytes, chunk_warps>(source, target, bytes, dealt);
  return dealt;
}

/// The chunks of this block.
class Chunks {
 public:
  __device__ Chunks(const Launch& args, Turn& turn)
      : args_(args), turn_(turn), count_(args.chunks_of(blockIdx.x)) {}

  /// The rounds of this block: the last ones take and keep what is under way.
  [[nodiscard]] __device__ uint32_t rounds() const {
    return count_ == 0 ? 0 : count_ + (args_.shares != 0 ? 2 : 1);
  }
  [[nodiscard]] __device__ Chunk chunk(uint32_t round, unsigned back) const {
    return Chunk::of(args_, blockIdx.x, count_, round, back);
  }

  __device__ void send(const Chunk& chunk) {
#pragma unroll 1
    for (unsigned i = 1; i < args_.shape.ranks; ++i) {
      const unsigned to = rank_after(args_, i), bytes = chunk.bytes_of(args_.sends[to]);
      if (bytes == 0) continue;
      dealt_ =
          deal(args_.sends[to].address + chunk.begin, slot(to, Way::parts, args_.rank, chunk), bytes, dealt_);
    }
  }

  /// What the ranks have sent goes to `receives`.
  __device__ void keep(Way way, const Chunk& chunk) {
#pragma unroll 1
    for (unsigned i = 1; i < args_.shape.ranks; ++i) {
      const unsigned from = rank_after(args_, i), bytes = chunk.bytes_of(args_.receives[from]);
      if (bytes == 0) continue;
      dealt_ =
          deal(slot(args_.rank, way, from, chunk), args_.receives[from].address + chunk.begin, bytes, dealt_);
    }
  }
  /// The part that this rank sends to itself.
  __device__ void keep_own(const Chunk& chunk) {
    const uint64_t target = args_.receives[args_.rank].address;
    const unsigned bytes = chunk.bytes_of(args_.own);
    if (bytes == 0 || target == args_.own.address) return;
    dealt_ = deal(args_.own.address + chunk.begin, target + chunk.begin, bytes, dealt_);
  }

  /// What the ranks have sent becomes a chunk of the result, which all ranks get if this one shares.
  template <class Sum, bool Simple>
  __device__ void reduce(const Chunk& chunk) const {
    constexpr unsigned batch = 4, side = 2;  // ranks, and units, that a thread reads together
    const unsigned bytes = chunk.bytes_of(args_.result),
                   rank_bytes = args_.shape.slots * args_.shape.chunk_bytes;
    const uint64_t slots = slot(args_.rank, Way::parts, 0, chunk);
    const Part own{args_.own.address + chunk.begin, bytes}, result{args_.result.address + chunk.begin, bytes};
#pragma unroll 1
    for (unsigned first = threadIdx.x * unit_bytes; first < bytes;
         first += side * chunk_threads * unit_bytes) {
      Unit own_units[side];
#pragma unroll
      for (unsigned s = 0; s < side; ++s)
        own_units[s] = read_unit<Simple>(own, first + s * chunk_threads * unit_bytes);
      Sum sums[side] = {Sum(args_), Sum(args_)};
#pragma unroll 1
      for (unsigned from = 0; from < args_.shape.ranks; from += batch) {
        Unit held[batch][side];
#pragma unroll
        for (unsigned i = 0; i < batch; ++i)
#pragma unroll
          for (unsigned s = 0; s < side; ++s) {
            const unsigned unit = first + s * chunk_threads * unit_bytes;
            held[i][s] = own_units[s];
            if (from + i < args_.shape.ranks && from + i != args_.rank && unit < bytes)
              held[i][s] = load_unit(slots + ((from + i) * rank_bytes + unit));
          }
#pragma unroll
        for (unsigned i = 0; i < batch; ++i)
#pragma unroll
          for (unsigned s = 0; s < side; ++s)
            if (from + i < args_.shape.ranks) sums[s].put(from + i, held[i][s].words);
      }
      Unit results[side];
#pragma unroll
      for (unsigned s = 0; s < side; ++s) {
        sums[s].result(results[s].words);
        write_unit<Simple>(result, first + s * chunk_threads * unit_bytes, results[s]);
      }
      if (args_.shares != 0) share(chunk, bytes, first, results);
    }
  }

  // By all threads. A round sends `sent`, takes `taken`, and keeps `kept`. Each of four warps waits for, or
  // tells, one kind of word, a lane for each rank.

  /// Waits for what the round needs. False: the launch ends early.
  template <bool Reduces>
  [[nodiscard]] __device__ bool wait(const Chunk& sent, const Chunk& taken, const Chunk& kept) {
    const unsigned rank = threadIdx.x % warp_lanes;
    bool is_good = true;
    switch (threadIdx.x / warp_lanes) {
      case 0:
        is_good = !goes_to(rank, sent) || wait_free(Way::parts, rank, sent);
        break;
      case 1:
        is_good = !comes_from<Reduces>(rank, taken) || wait_came(Way::parts, rank, taken);
        break;
      case 2:
        is_good = !shares_with(rank, taken) || wait_free(Way::results, rank, taken);
        break;
      case 3:
        is_good = !is_shared_by(rank, kept) || wait_came(Way::results, rank, kept);
        break;
      default:
        break;
    }
    return all_good(is_good);
  }
  /// Tells the ranks what the round has done.
  template <bool Reduces>
  __device__ void tell(const Chunk& sent, const Chunk& taken, const Chunk& kept) const {
    __syncthreads();  // all threads' bytes come before what the warps tell
    const unsigned rank = threadIdx.x % warp_lanes;
    switch (threadIdx.x / warp_lanes) {
      case 0:
        if (goes_to(rank, sent)) tell_sent(Way::parts, rank, sent);
        break;
      case 1:
        if (comes_from<Reduces>(rank, taken)) tell_taken(Way::parts, rank, taken);
        break;
      case 2:
        if (shares_with(rank, taken)) tell_sent(Way::results, rank, taken);
        break;
      case 3:
        if (is_shared_by(rank, kept)) tell_taken(Way::results, rank, kept);
        break;
      default:
        break;
    }
  }

 private:
  /// Sends these units of the result, of which the chunk has `bytes` bytes, to all ranks.
  template <unsigned Side>
  __device__ void share(const Chunk& chunk, unsigned bytes, unsigned first,
                        const Unit (&results)[Side]) const {
    const unsigned place = args_.shape.chunk(Way::results, args_.rank, chunk.slot) + first;
#pragma unroll 4
    for (unsigned to = 0; to < args_.shape.ranks; ++to) {
      if (to == args_.rank) continue;
      const uint64_t target = args_.boxes[to] + place;
#pragma unroll
      for (unsigned s = 0; s < Side; ++s)
        if (first + s * chunk_threads * unit_bytes < bytes)
          store_unit(target + s * chunk_threads * unit_bytes, results[s]);
    }
  }

  [[nodiscard]] __device__ uint64_t key(const Chunk& chunk) const {
    return chunk_key(turn_.epoch(), chunk.number);
  }
  [[nodiscard]] __device__ bool is_peer(unsigned rank) const {
    return rank < args_.shape.ranks && rank != args_.rank;
  }
  [[nodiscard]] __device__ bool goes_to(unsigned rank, const Chunk& chunk) const {
    return is_peer(rank) && chunk.bytes_of(args_.sends[rank]) != 0;
  }
  template <bool Reduces>
  [[nodiscard]] __device__ bool comes_from(unsigned rank, const Chunk& chunk) const {
    return is_peer(rank) && chunk.bytes_of(Reduces ? args_.result : args_.receives[rank]) != 0;
  }
  [[nodiscard]] __device__ bool shares_with(unsigned rank, const Chunk& chunk) const {
    return args_.shares != 0 && is_peer(rank) && chunk.bytes_of(args_.result) != 0;
  }
  [[nodiscard]] __device__ bool is_shared_by(unsigned rank, const Chunk& chunk) const {
    return args_.shares != 0 && is_peer(rank) && chunk.bytes_of(args_.receives[rank]) != 0;
  }
  [[nodiscard]] __device__ uint64_t slot(unsigned in_box_of, Way way, unsigned from,
                                         const Chunk& chunk) const {
    return turn_.box(in_box_of) + args_.shape.chunk(way, from, chunk.slot);
  }

  [[nodiscard]] __device__ bool wait_free(Way way, unsigned to, const Chunk& chunk) {
    const uint64_t sent = look_at(turn_.own_box() + args_.shape.sent(way, to, chunk.slot));
    return wait(turn_.own_box() + args_.shape.taken(way, to, chunk.slot), sent, to);  // both loads travel
  }
  [[nodiscard]] __device__ bool wait_came(Way way, unsigned from, const Chunk& chunk) {
    return wait(turn_.own_box() + args_.shape.came(way, from, chunk.slot), key(chunk), from);
  }
  [[nodiscard]] __device__ bool wait(uint64_t word, uint64_t value, unsigned peer) {
    while (acquire(word) != value)
      if (turn_.gives_up(peer)) return false;
    return true;
  }
  __device__ void tell_sent(Way way, unsigned to, const Chunk& chunk) const {
    release(turn_.box(to) + args_.shape.came(way, args_.rank, chunk.slot), key(chunk));
    store_relaxed(turn_.own_box() + args_.shape.sent(way, to, chunk.slot), key(chunk));
  }
  __device__ void tell_taken(Way way, unsigned from, const Chunk& chunk) const {
    release(turn_.box(from) + args_.shape.taken(way, args_.rank, chunk.slot), key(chunk));
  }

  const Launch& args_;
  Turn& turn_;
  const uint32_t count_;
  unsigned dealt_ = 0;  // how many parts of runs the warps have been dealt
};

/// The rounds of an operation that has begun: `work(sent, taken, kept)` is what the block does in one. False:
/// it ends early.
template <bool Reduces, class Work>
[[nodiscard]] __device__ __forceinline__ bool run_rounds(const Launch& args, Turn& turn, const Work& work) {
  bool is_good = true;
  Chunks chunks(args, turn);
  const uint32_t rounds = chunks.rounds();
#pragma unroll 1
  for (uint32_t round = 0; is_good && round < rounds; ++round) {
    const Chunk sent = chunks.chunk(round, 0), taken = chunks.chunk(round, 1), kept = chunks.chunk(round, 2);
    is_good = chunks.wait<Reduces>(sent, taken, kept);
    if (!is_good) break;
    work(chunks, sent, taken, kept);
    chunks.tell<Reduces>(sent, taken, kept);
  }
  return is_good;
}

/// Every rank's parts go to their ranks, which keep them.
struct ExchangeChunks {
  [[nodiscard]] __device__ bool operator()(const Launch& args, Turn& turn) const {
    return run_rounds<false>(args, turn,
                             [](Chunks& chunks, const Chunk& sent, const Chunk& taken, const Chunk&) {
                               chunks.send(sent);
                               chunks.keep_own(taken);
                               chunks.keep(Way::parts, taken);
                             });
  }
};

/// Every rank's parts go to their ranks, which reduce them; if they share, every rank gets all results.
template <class Sum, bool Simple>
struct ReduceChunks {
  [[nodiscard]] __device__ bool operator()(const Launch& args, Turn& turn) const {
    return run_rounds<true>(args, turn,
                            [&](Chunks& chunks, const Chunk& sent, const Chunk& taken, const Chunk& kept) {
                              chunks.send(sent);
                              chunks.template reduce<Sum, Simple>(taken);
                              if (args.shares != 0) chunks.keep(Way::results, kept);
                            });
  }
};

/// A launch whose parts travel in chunks.
template <class Rounds>
__device__ __forceinline__ void run_in_chunks(const Launch& args) {
  Turn turn(args);
  bool is_good = all_good(turn.begin());
  if (is_good) is_good = Rounds()(args, turn);
  turn.end(is_good);
}

/// The same with splits in GPU memory. Each block reads them and cuts its own copy of the launch's parts.
__device__ __forceinline__ void run_in_split_chunks(const SplitLaunch& args) {
  __shared__ alignas(Launch) uint64_t words[sizeof(Launch) / sizeof(uint64_t)];
  __shared__ int64_t gives[most_ranks], gets[most_ranks];
  __shared__ WrongSplit wrong;
  static_assert(sizeof(Launch) % sizeof(uint64_t) == 0);
  Launch& launch = *reinterpret_cast<Launch*>(words);
  const unsigned thread = threadIdx.x;
  for (unsigned i = thread; i < sizeof(Launch) / sizeof(uint64_t); i += chunk_threads)
    words[i] = reinterpret_cast<const uint64_t*>(&args.launch)[i];
  if (thread < args.launch.shape.ranks) {
    gives[thread] = reinterpret_cast<const int64_t*>(args.splits.gives)[thread];
    gets[thread] = reinterpret_cast<const int64_t*>(args.splits.gets)[thread];
  }
  __syncthreads();
  if (thread == 0) wrong = place_parts(args.splits, gives, gets, launch);
  __syncthreads();
  Turn turn(launch);
  bool is_good = all_good(turn.begin());
  if (is_good && wrong.reason != 0) {
    if (thread == 0) report(launch, turn.epoch(), wrong.reason, wrong.rank, wrong.value);
    is_good = false;
  }
  if (is_good) is_good = ExchangeChunks()(launch, turn);
  turn.end(is_good);
}

}  // namespace headrace::kernels::collectives
