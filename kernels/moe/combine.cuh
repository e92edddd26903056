// SPDX-License-Identifier: Apache-2.0
// Combine: a target adds the rows that a record has become, and pushes the partial sum to the slot that the
// record had. A source adds the partials of each token when their chunks are there.
#pragma once

#include "kernels/moe/blocks.cuh"
#include "kernels/moe/route.cuh"
#include "kernels/moe/rows.cuh"

namespace headrace::kernels::moe {

template <bool Condition, class A, class B>
struct Either {
  using Type = A;
};
template <class A, class B>
struct Either<false, A, B> {
  using Type = B;
};

/// `Float8`: partials travel as blocks of float8.
template <class Type, bool Float8>
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
      shared_.records[threadIdx.x] =
          has_room(threadIdx.x) ? at<const RoutingHead>(common_.routing)->records[threadIdx.x] : 0;
    }
    __syncthreads();
    if (common_.group_size() != 1) send_missing();
    const uint64_t warps = uint64_t{common_.senders} * block_warps;
    const ChunkList chunks(shared_.records, common_.window.ranks);
    const uint32_t pieces = pieces_of(chunks.records(), args_.row_bytes, warps);
    for (uint64_t unit = uint64_t{blockIdx.x} * block_warps + warp(); unit < chunks.slots() * pieces;
         unit += warps) {
      const ChunkList::Slot slot = chunks.slot(unit / pieces);
      if (slot.slot < slot.records) send_piece(slot, static_cast<uint32_t>(unit % pieces), pieces);
    }
  }

  /// By all threads of a block.
  __device__ void receive() {
    const uint64_t tokens = at<const RoutingHead>(common_.routing)->tokens;
    const uint32_t pieces = pieces_of(tokens, args_.row_bytes, uint64_t{gridDim.x} * block_warps);
    Units units(turn_, tokens * pieces, common_.senders != gridDim.x);
    for (uint64_t unit = 0; units.next(unit);)
      receive_piece(tokens, unit / pieces, static_cast<uint32_t>(unit % pieces), pieces);
  }

 private:
  /// Vectors of a thread that it adds up together: what the registers have room for.
  static constexpr unsigned unroll = Float8 ? 2 : Type::elements == 4 ? 4 : 3;
  using Sums = VectorSums<Type, unroll>;
  using Mine = LaneVectors<unroll>;

  /// Of the vectors of a row. With blocks, pieces are whole ones.
  [[nodiscard]] __device__ Share share(uint32_t piece, uint32_t pieces) const {
    constexpr uint64_t unit = Float8 ? headrace::moe::block_elements / Type::elements : 1;
    const uint64_t vectors = args_.row_bytes / vector_bytes;
    const Share units = Share::of((vectors + unit - 1) / unit, piece, pieces);
    const uint64_t end = units.end * unit;
    return {units.begin * unit, end < vectors ? end : vectors};
  }
  /// Where the scales of a partial lie.
  [[nodiscard]] __device__ uint64_t scales_behind() const {
    return headrace::moe::round_up(args_.row_bytes / vector_bytes * Type::elements, 16);
  }

  [[nodiscard]] __device__ bool has_room(unsigned rank) const { return (shared_.rooms >> rank & 1) != 0; }
  /// Calls each(window) for the members of a rank's group that are there: all of them get its partials.
  template <class Each>
  __device__ void each_member(unsigned rank, const Each& each) const {
    const unsigned first = rank - common_.member(rank);
    for (unsigned member = first; member < first + common_.group_size(); ++member)
      if (has_room(member)) each(common_.windows[member]);
  }
  /// Partials of records that never came: the other members of their source's group do not wait for them.
  __device__ void send_missing() const {
    for (unsigned source = blockIdx.x; source < common_.window.ranks; source += common_.senders) {
      if (has_room(source)) continue;
      const uint64_t first = chunk_of(common_.window.group_slot(common_.member(source), 0));
      for (uint64_t chunk = threadIdx.x; chunk < chunks_of(common_.window.slots); chunk += block_threads)
        each_member(source, [&](uint64_t window) {
          store_relaxed(window + common_.window.partial_flag_at(turn_.sends(), common_.rank, first + chunk),
                        turn_.sends() | headrace::moe::missing_bit);
        });
    }
  }

  /// The row is in its source's window: other members of the group get copies. Without a row it is zeros.
  __device__ void complete_in_window(unsigned source, uint64_t group_slot, bool is_written,
                                     Share share) const {
    const uint64_t at = common_.window.partial_at(turn_.sends(), common_.rank, group_slot);
    const uint64_t from = common_.windows[source] + at;
    each_member(source, [&](uint64_t window) {
      if (!is_written)
        zero_row(window + at + share.begin * vector_bytes, (share.end - share.begin) * vector_bytes);
      else if (window + at != from)
        copy_units<Vector>(from, vector_bytes, window + at, vector_bytes, 1, share);
    });
  }

  __device__ void send_piece(const ChunkList::Slot& slot, uint32_t piece, uint32_t pieces) const {
    const WindowLayout& window = common_.window;
    const uint32_t count = *at<const uint32_t>(common_.placed_count_at(slot.source, slot.slot));
    Placed placed{no_row, 1};  // read beside the count, even if there are fewer
    if (lane() < common_.top_k())
      placed = *at<const Placed>(common_.placed_at(slot.source, slot.slot) + lane() * sizeof(Placed));
    if (lane() >= count) placed.row = no_row;
    const uint64_t group_slot = window.group_slot(common_.member(slot.source), slot.slot);
    const auto targets = [&](const auto& store) {
      each_member(slot.source, [&](uint64_t to) {
        store(to + window.partial_at(turn_.sends(), common_.rank, group_slot));
      });
    };
    if (!Float8 && args_.in_window != 0)
      complete_in_window(slot.source, group_slot, __shfl_sync(all_lanes, placed.row, 0) != no_row,
                         share(piece, pieces));
    else
      sum_rows<Type, PlainRow<Type>, unroll>(
          placed.row == no_row ? 0 : args_.results + placed.row * args_.result_stride,
          args_.weighted != 0 ? placed.weight : 1, count, LastTerms{}, 0, share(piece, pieces),
          [&](const Sums& sums, const Mine& mine) {
            if constexpr (Float8)
              store_blocks(sums, mine, scales_behind(), targets);
            else
              store_sums(sums, mine, targets);
          });
    __syncwarp();
    if (lane() != 0) return;
    const uint64_t chunk = chunk_of(slot.slot);
    end_unit(common_, slot.source, chunk, slots_in_chunk(chunk, slot.records) * pieces, [&] {
      each_member(slot.source, [&](uint64_t to) {
        store_relaxed(to + window.partial_flag_at(turn_.sends(), common_.rank, chunk_of(group_slot)),
                      turn_.sends());
      });
    });
  }

  __device__ void receive_piece(uint64_t tokens, uint64_t token, uint32_t piece, uint32_t pieces) const {
    const Visit visit(common_, common_.lists(), token);
    const uint32_t member = headrace::moe::member_of_token(tokens, common_.group_size(), token);
    const uint64_t partial =
        visit.is_one ? wait_for_partial(visit.rank, common_.window.group_slot(member, visit.slot)) : 0;
    __syncwarp();
    const uint64_t offset = token * args_.row_bytes, to = args_.sums + token * args_.sum_stride;
    const LastTerms last{{args_.biases[0] == 0 ? 0 : args_.biases[0] + offset,
                          args_.biases[1] == 0 ? 0 : args_.biases[1] + offset,
                          args_.accumulate == 0 ? 0 : to}};
    using Row = typename Either<Float8, BlockRow<Type>, PlainRow<Type>>::Type;
    sum_rows<Type, Row, unroll>(partial, 1, visit.count, last, scales_behind(), share(piece, pieces),
                                [&](const Sums& sums, const Mine& mine) {
                                  store_sums(sums, mine, [to](const auto& store) { store(to); });
                                });
  }
  /// 0: it does not come.
  __device__ uint64_t wait_for_partial(unsigned rank, uint64_t group_slot) const {
    const WindowLayout& window = common_.window;
    const uint64_t flag =
        common_.own_window() + window.partial_flag_at(turn_.receives(), rank, chunk_of(group_slot));
    uint64_t seen = 0;
    if (!turn_.is_active(rank) || !turn_.waits_for({rank, HEADRACE_MOE_SUMS, flag, turn_.receives()}, seen) ||
        !headrace::moe::has_come(seen, turn_.receives()))
      return 0;
    return common_.own_window() + window.partial_at(turn_.receives(), rank, group_slot);
  }

  const CombineLaunch& args_;
  const Common& common_;
  Turn& turn_;
  Shared& shared_;
};

template <class Kind>
__device__ __forceinline__ void combine_with(const CombineLaunch& args, Turn& turn, Shared& shared) {
  Kind combine(args, turn, shared);
  if ((args.common.halves & HEADRACE_MOE_SEND) != 0 && blockIdx.x < args.common.senders) combine.send();
  if ((args.common.halves & HEADRACE_MOE_RECEIVE) != 0) combine.receive();
}

/// Float8 is a kernel of its own: registers of one do not limit the other.
template <bool Float8>
__device__ __forceinline__ void combine(const CombineLaunch& args) {
  __shared__ Shared shared;
  Turn turn(args.common, op_combine);
  if (turn.begins()) {
    if (args.dtype == HEADRACE_FLOAT32) combine_with<Combine<Float32, Float8>>(args, turn, shared);
    if (args.dtype == HEADRACE_FLOAT16) combine_with<Combine<Float16, Float8>>(args, turn, shared);
    if (args.dtype == HEADRACE_BFLOAT16) combine_with<Combine<BFloat16, Float8>>(args, turn, shared);
  }
  turn.end((args.common.halves & HEADRACE_MOE_RECEIVE) != 0 ? offsetof(PeerWords, combine_taken)
                                                            : Turn::no_word);
}

}  // namespace headrace::kernels::moe
