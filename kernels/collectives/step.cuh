// SPDX-License-Identifier: Apache-2.0
// One step between copies: one block tells the ranks what the copies before it have done, and waits for what
// the copies behind it need. Copies and kernels of a stream are in order, so nothing else is to be done.
//
// All slots of a rank are free when it begins, because it first waits until all ranks have begun: they have
// ended the operation before, and have taken what was in the slots. It ends when all of its chunks have been
// taken, so the slots are free again.
#pragma once

#include "kernels/collectives/chunks.cuh"
#include "kernels/collectives/copies.cuh"

namespace headrace::kernels::collectives {

class Step {
 public:
  __device__ Step(const StepLaunch& args, Turn& turn) : args_(args.launch), turn_(turn) {}

  /// By the lanes of one warp, a rank for each. Tells the rank that `sent` has come, and waits until it has
  /// taken `kept`, which was sent one step earlier. False: it has given up.
  [[nodiscard]] __device__ bool sends(unsigned rank, const Chunk& sent, const Chunk& kept) {
    if (sent.bytes_of(args_.sends[rank]) != 0) {
      release(turn_.box(rank) + args_.shape.came(half_of(sent), args_.rank, 0), key(sent));
      store_relaxed(turn_.own_box() + args_.shape.sent(half_of(sent), rank, 0), key(sent));
    }
    return kept.bytes_of(args_.sends[rank]) == 0 ||
           wait(args_.shape.taken(half_of(kept), rank, 0), key(kept), rank);
  }
  /// The same by another warp: tells that `kept` was taken, and waits until `sent` has come.
  [[nodiscard]] __device__ bool receives(unsigned rank, const Chunk& sent, const Chunk& kept) {
    if (kept.bytes_of(args_.receives[rank]) != 0)
      release(turn_.box(rank) + args_.shape.taken(half_of(kept), args_.rank, 0), key(kept));
    return sent.bytes_of(args_.receives[rank]) == 0 ||
           wait(args_.shape.came(half_of(sent), rank, 0), key(sent), rank);
  }

 private:
  [[nodiscard]] __device__ uint64_t key(const Chunk& chunk) const {
    return chunk_key(turn_.epoch(), chunk.number);
  }
  [[nodiscard]] __device__ bool wait(unsigned word, uint64_t value, unsigned peer) {
    while (acquire(turn_.own_box() + word) != value)
      if (turn_.gives_up(peer)) return false;
    return true;
  }

  const Launch& args_;
  Turn& turn_;
};

__device__ __forceinline__ void run_step(const StepLaunch& args) {
  Turn turn(args.launch);
  Step step(args, turn);
  bool is_good = args.step == 0 ? turn.begin() && turn.meet() : turn.may_go_on();
  is_good = all_good(is_good);
  const unsigned rank = threadIdx.x % warp_lanes;
  if (is_good && rank < args.launch.shape.ranks && rank != args.launch.rank) {
    const Chunk sent = args.sent(), kept = args.kept();
    is_good = threadIdx.x < warp_lanes ? step.sends(rank, sent, kept) : step.receives(rank, sent, kept);
  }
  is_good = all_good(is_good);
  if (args.is_last()) turn.end(is_good);
}

}  // namespace headrace::kernels::collectives
