// SPDX-License-Identifier: Apache-2.0
// Combine: a target adds the rows that a record has become, and pushes the partial sum to the slot that the
// record had. A source adds the partials of each token when their chunks are there.
#pragma once

#include "kernels/moe/route.cuh"
#include "kernels/moe/rows.cuh"

namespace headrace::kernels::moe {

template <class Type>
class Combine {
 public:
  __device__ Combine(const CombineLaunch& args, Turn& turn, Shared& shared)
      : args_(args), common_(args.common), turn_(turn), shared_(shared) {}

  /// By all threads of a sending block.
  __device__ void send() {
    if (warp() == 0) {
      const uint64_t rooms = ranks_with_room(common_, turn_, offsetof(PeerWords, combine_taken));
      if (lane() == 0) shared_.rooms = rooms;
    }
    __syncthreads();
    if (threadIdx.x < common_.window.ranks) {
      const bool has_room = (shared_.rooms >> threadIdx.x & 1) != 0;
      shared_.records[threadIdx.x] =
          has_room ? at<const RoutingHead>(common_.routing)->records[threadIdx.x] : 0;
    }
    __syncthreads();
    const uint64_t warps = uint64_t{common_.senders} * block_warps;
    const ChunkList chunks(shared_.records, common_.window.ranks);
    const uint32_t pieces = pieces_of(chunks.records(), common_.window.partial_bytes, warps);
    for (uint64_t unit = uint64_t{blockIdx.x} * block_warps + warp(); unit < chunks.slots() * pieces;
         unit += warps) {
      const ChunkList::Slot slot = chunks.slot(unit / pieces);
      if (slot.slot < slot.records) send_piece(slot, static_cast<uint32_t>(unit % pieces), pieces);
    }
  }

  /// By all threads of a block.
  __device__ void receive() {
    const uint64_t tokens = at<const RoutingHead>(common_.routing)->tokens;
    const uint32_t pieces =
        pieces_of(tokens, common_.window.partial_bytes, uint64_t{gridDim.x} * block_warps);
    Units units(turn_, tokens * pieces, common_.senders != gridDim.x);
    for (uint64_t unit = 0; units.next(unit);)
      receive_piece(unit / pieces, static_cast<uint32_t>(unit % pieces), pieces);
  }

 private:
  [[nodiscard]] __device__ Share share(uint32_t piece, uint32_t pieces) const {
    return Share::of(common_.window.partial_bytes / vector_bytes, piece, pieces);
  }

  __device__ void send_piece(const ChunkList::Slot& slot, uint32_t piece, uint32_t pieces) const {
    const WindowLayout& window = common_.window;
    const uint64_t to = common_.windows[slot.source];
    const uint32_t count = *at<const uint32_t>(common_.placed_count_at(slot.source, slot.slot));
    Placed placed{no_row, 1};
    if (lane() < count)
      placed = *at<const Placed>(common_.placed_at(slot.source, slot.slot) + lane() * sizeof(Placed));
    sum_rows<Type>(placed.row == no_row ? 0 : args_.results + placed.row * args_.result_stride,
                   args_.weighted != 0 ? placed.weight : 1, count, LastTerms{},
                   to + window.partial_at(turn_.sends(), common_.rank, slot.slot), share(piece, pieces));
    __syncwarp();
    if (lane() != 0) return;
    const uint64_t chunk = chunk_of(slot.slot);
    if (ends_chunk(common_, slot.source, chunk, slots_in_chunk(chunk, slot.records) * pieces))
      tell(to + window.partial_flag_at(turn_.sends(), common_.rank, chunk), turn_.sends());
  }

  __device__ void receive_piece(uint64_t token, uint32_t piece, uint32_t pieces) const {
    const Visit visit(common_, common_.lists(), token);
    const uint64_t partial = visit.is_one ? wait_for_partial(visit) : 0;
    __syncwarp();
    const uint64_t offset = token * common_.window.partial_bytes, to = args_.sums + token * args_.sum_stride;
    const LastTerms last{{args_.biases[0] == 0 ? 0 : args_.biases[0] + offset,
                          args_.biases[1] == 0 ? 0 : args_.biases[1] + offset,
                          args_.accumulate == 0 ? 0 : to}};
    sum_rows<Type>(partial, 1, visit.count, last, to, share(piece, pieces));
  }
  /// 0: it does not come.
  __device__ uint64_t wait_for_partial(const Visit& visit) const {
    const WindowLayout& window = common_.window;
    const uint64_t flag =
        common_.own_window() + window.partial_flag_at(turn_.receives(), visit.rank, chunk_of(visit.slot));
    if (!turn_.is_active(visit.rank) ||
        !turn_.waits_for({visit.rank, HEADRACE_MOE_SUMS, flag, turn_.receives()}) ||
        !headrace::moe::has_come(acquire(flag), turn_.receives()))
      return 0;
    return common_.own_window() + window.partial_at(turn_.receives(), visit.rank, visit.slot);
  }

  const CombineLaunch& args_;
  const Common& common_;
  Turn& turn_;
  Shared& shared_;
};

template <class Type>
__device__ __forceinline__ void combine_as(const CombineLaunch& args, Turn& turn, Shared& shared) {
  Combine<Type> combine(args, turn, shared);
  if ((args.common.halves & HEADRACE_MOE_SEND) != 0 && blockIdx.x < args.common.senders) combine.send();
  if ((args.common.halves & HEADRACE_MOE_RECEIVE) != 0) combine.receive();
}

__device__ __forceinline__ void combine(const CombineLaunch& args) {
  __shared__ Shared shared;
  Turn turn(args.common, op_combine);
  if (turn.begins()) {
    if (args.dtype == HEADRACE_FLOAT32) combine_as<Float32>(args, turn, shared);
    if (args.dtype == HEADRACE_FLOAT16) combine_as<Float16>(args, turn, shared);
    if (args.dtype == HEADRACE_BFLOAT16) combine_as<BFloat16>(args, turn, shared);
  }
  turn.end((args.common.halves & HEADRACE_MOE_RECEIVE) != 0 ? offsetof(PeerWords, combine_taken)
                                                            : Turn::no_word);
}

}  // namespace headrace::kernels::moe
