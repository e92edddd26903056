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
      : args_(args),
        common_(args.common),
        turn_(turn),
        shared_(shared),
        tokens_(at<const RoutingHead>(args.common.routing)->tokens) {}

  /// By all threads of a sending block.
  __device__ void send() {
    uint32_t records = 0;  // read beside the words of the room
    if (threadIdx.x < common_.window.ranks)
      records = at<const RoutingHead>(common_.routing)->records[threadIdx.x];
    if (warp() == 0) {
      const uint64_t rooms = ranks_with_room(common_, turn_, offsetof(PeerWords, combine_taken));
      if (lane() == 0) shared_.rooms = rooms;
    }
    __syncthreads();
    if (threadIdx.x < common_.window.ranks) {
      const bool has_room = (shared_.rooms >> threadIdx.x & 1) != 0;
      shared_.records[threadIdx.x] = has_room ? records : 0;
    }
    __syncthreads();
    const uint64_t warps = uint64_t{common_.senders} * block_warps;
    const ChunkList chunks(shared_.records, common_.window.ranks);
    const uint32_t pieces = pieces_of(chunks.records(), common_.window.partial_bytes, warps);
    const uint64_t units = chunks.slots() * pieces;
    uint64_t unit = uint64_t{blockIdx.x} * block_warps + warp();
    Record next = unit < units ? record_at(chunks.slot(unit / pieces)) : Record{};
    const unsigned together = counted_together(units / warps);
    unsigned sent = 0;       // pieces that are not counted yet
    ChunkList::Slot mine{};  // that of this lane
    for (; unit < units; unit += warps) {
      const Record record = next;  // the next one is read while this one is added
      if (unit + warps < units) next = record_at(chunks.slot((unit + warps) / pieces));
      if (record.at.slot >= record.at.records) continue;
      send_piece(record, share(static_cast<uint32_t>(unit % pieces), pieces));
      if (lane() == sent) mine = record.at;
      if (++sent < together) continue;
      count_pieces(mine, sent, pieces);
      sent = 0;
    }
    count_pieces(mine, sent, pieces);
  }

  /// By all threads of a block.
  __device__ void receive() {
    const uint32_t pieces =
        pieces_of(tokens_, common_.window.partial_bytes, uint64_t{gridDim.x} * block_warps);
    Units units(turn_, tokens_ * pieces, common_.senders != gridDim.x);
    for (uint64_t unit = 0; units.next(unit);)
      receive_piece(unit / pieces, static_cast<uint32_t>(unit % pieces), pieces);
  }

 private:
  [[nodiscard]] __device__ Share share(uint32_t piece, uint32_t pieces) const {
    return Share::of(common_.window.partial_bytes / vector_bytes, piece, pieces);
  }

  /// The rows that a record has become, one in a lane.
  struct Record {
    ChunkList::Slot at;
    uint32_t count;
    Placed placed;  ///< of lanes below count
  };
  [[nodiscard]] __device__ Record record_at(const ChunkList::Slot& slot) const {
    Record record{slot, *at<const uint32_t>(common_.placed_count_at(slot.source, slot.slot)), {no_row, 1}};
    if (lane() < common_.top_k())  // read beside the count, even if there are fewer
      record.placed = *at<const Placed>(common_.placed_at(slot.source, slot.slot) + lane() * sizeof(Placed));
    return record;
  }

  __device__ void send_piece(const Record& record, Share share) const {
    const auto& [slot, count, placed] = record;
    sum_rows<Type>(
        placed.row == no_row ? 0 : args_.results + placed.row * args_.result_stride,
        args_.weighted != 0 ? placed.weight : 1, count, LastTerms{},
        common_.windows[slot.source] + common_.window.partial_at(turn_.sends(), common_.rank, slot.slot),
        share);
  }
  /// A fence takes as long as a good part of a row: a warp with many pieces has one for several of them, a
  /// small part of all, so that flags come late by no more than that.
  [[nodiscard]] static __device__ unsigned counted_together(uint64_t pieces_of_warp) {
    const uint64_t part = pieces_of_warp / 8;
    return part == 0 ? 1 : part < 4 ? static_cast<unsigned>(part) : 4;
  }
  /// By a warp, of which the first `sent` lanes have a piece each.
  __device__ void count_pieces(const ChunkList::Slot& mine, unsigned sent, uint32_t pieces) const {
    __syncwarp();
    if (lane() < sent) {
      const uint64_t chunk = chunk_of(mine.slot);
      if (ends_chunk(common_, mine.source, chunk, slots_in_chunk(chunk, mine.records) * pieces))
        tell(
            common_.windows[mine.source] + common_.window.partial_flag_at(turn_.sends(), common_.rank, chunk),
            turn_.sends());
    }
    __syncwarp();
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
    uint64_t seen = 0;
    if (!turn_.is_active(visit.rank) ||
        !turn_.waits_for({visit.rank, HEADRACE_MOE_SUMS, flag, turn_.receives()}, seen) ||
        !headrace::moe::has_come(seen, turn_.receives()))
      return 0;
    return common_.own_window() + window.partial_at(turn_.receives(), visit.rank, visit.slot);
  }

  const CombineLaunch& args_;
  const Common& common_;
  Turn& turn_;
  Shared& shared_;
  const uint64_t tokens_;  // read at the begin, beside what the send reads
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
