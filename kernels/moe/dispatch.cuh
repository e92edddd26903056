// SPDX-License-Identifier: Apache-2.0
// Dispatch: a source makes its route, and sends cards and records. A target lays out the rows as soon as all
// cards are there, and takes records as their chunks come.
#pragma once

#include "kernels/moe/blocks.cuh"
#include "kernels/moe/route.cuh"
#include "kernels/moe/rows.cuh"

namespace headrace::kernels::moe {

class DispatchSend {
 public:
  __device__ DispatchSend(const DispatchLaunch& args, Turn& turn, Shared& shared)
      : args_(args), common_(args.common), turn_(turn), shared_(shared), route_(args, turn, shared) {}

  /// By all threads of a sending block.
  __device__ void run() {
    route_.make([&] {
      const uint64_t rooms = ranks_with_room(common_, turn_, offsetof(PeerWords, dispatch_taken));
      if (lane() == 0) shared_.rooms = rooms;
    });
    if (route_.is_clerk()) send_cards();
    send_records();
    route_.keep();
    if (common_.group_size() != 1) route_.make_of_others();
  }

 private:
  [[nodiscard]] __device__ bool has_room(unsigned rank) const { return (shared_.rooms >> rank & 1) != 0; }

  __device__ void send_cards() const {
    const WindowLayout& window = common_.window;
    const uint64_t card = window.card_at(turn_.sends(), common_.rank);
    route_.each_total([&](unsigned expert, uint32_t total) {
      const unsigned rank = common_.rank_of(expert);
      const uint64_t place = (expert - common_.first_expert[rank]) * sizeof(uint32_t);
      if (has_room(rank))
        *at<uint32_t>(common_.windows[rank] + window.counts_at(turn_.sends(), common_.rank) + place) = total;
    });
    const unsigned rank = threadIdx.x;
    const bool is_target = rank < window.ranks && has_room(rank);
    if (is_target)
      *at<uint64_t>(common_.windows[rank] + card + offsetof(CardHead, records)) = shared_.records[rank];
    __syncthreads();
    if (!is_target) return;
    fence_system();  // pairs with the acquire of the card: all threads' counts come before it
    store_relaxed(common_.windows[rank] + card + offsetof(CardHead, epoch), turn_.sends());
  }

  /// A small route is known to all blocks: they share the tokens, in pieces. Else each block has its own.
  __device__ void send_records() const {
    const uint64_t warps = uint64_t{common_.senders} * block_warps;
    const bool is_small = route_.is_small_route();
    const uint64_t tokens = route_.own().end - route_.own().begin;
    const uint32_t pieces = is_small ? pieces_of(tokens, common_.window.record.row_bytes, warps) : 1;
    const uint64_t first = is_small ? uint64_t{blockIdx.x} * block_warps + warp() : warp();
    for (uint64_t unit = first; unit < tokens * pieces; unit += is_small ? warps : block_warps)
      send_piece(route_.own().begin + unit / pieces, static_cast<uint32_t>(unit % pieces), pieces);
  }

  __device__ void send_piece(uint64_t token, uint32_t piece, uint32_t pieces) const {
    const WindowLayout& window = common_.window;
    // It comes while the row is moved.
    const float weight = piece == 0 && lane() < common_.top_k() ? weight_of(token) : 0;
    const Visit visit(common_, route_.lists(), token);
    const bool sends = visit.is_one && has_room(visit.rank);
    const uint64_t record =
        sends ? common_.windows[visit.rank] + window.slot_at(turn_.sends(), common_.rank, visit.slot) : 0;
    send_row(token, sends ? record + window.record.row_at() : 0, visit.count, piece, pieces);
    if (piece == 0) write_head(token, visit, record, weight);
#pragma unroll 1
    for (uint32_t i = 0; i < args_.columns.count; ++i) {
      const Column& column = args_.columns.of[i];
      copy_column({column.row_at(token), column.unit_stride},
                  {sends ? record + column.record_at : 0, column.unit_bytes}, visit.count,
                  Share::of(column.units, piece, pieces), column.unit_bytes);
    }
    __syncwarp();
    if (!sends) return;
    const uint64_t chunk = chunk_of(visit.slot);
    end_unit(common_, visit.rank, chunk, slots_in_chunk(chunk, shared_.records[visit.rank]) * pieces, [&] {
      store_relaxed(common_.windows[visit.rank] + window.chunk_flag_at(turn_.sends(), common_.rank, chunk),
                    turn_.sends());
    });
  }

  /// Of this lane's entry.
  [[nodiscard]] __device__ float weight_of(uint64_t token) const {
    return route_.weight_of(token * common_.top_k() + lane());
  }
  /// `to`: of this lane's visit.
  __device__ void send_row(uint64_t token, uint64_t to, unsigned count, uint32_t piece,
                           uint32_t pieces) const {
    const auto& layout = common_.window.record;
    const uint64_t from = args_.rows + token * args_.row_stride;
    if (args_.cast == 0)
      return copy_to_all(from, to, count, Share::of(layout.row_bytes / vector_bytes, piece, pieces));
    cast_to_all(from, static_cast<uint32_t>(layout.row_bytes), args_.cast, to,
                layout.scales_at() - layout.row_at(), count,
                Share::of(headrace::moe::blocks_of(layout.row_bytes), piece, pieces));
  }

  /// `record`: of this lane's visit.
  __device__ void write_head(uint64_t token, const Visit& visit, uint64_t record, float weight) const {
    const auto& layout = common_.window.record;
    const uint64_t entry = token * common_.top_k() + lane();
    const int32_t expert = lane() < common_.top_k() ? route_.active_expert_of(entry) : -1;
    const unsigned rank = expert < 0 ? most_ranks : common_.rank_of(static_cast<uint32_t>(expert));
    const uint32_t order = expert < 0 ? 0 : *at<const uint32_t>(route_.lists().orders + entry * 4);
    for (unsigned i = 0; i < visit.count; ++i) {
      const uint64_t to = __shfl_sync(all_lanes, record, i);
      const bool is_its = rank == __shfl_sync(all_lanes, visit.rank, i);
      const unsigned its = __ballot_sync(all_lanes, is_its);
      if (to == 0) continue;
      if (is_its) {
        const uint64_t place = static_cast<uint64_t>(__popc(its & lanes_below())) * sizeof(Entry);
        *at<Entry>(to + layout.entries_at() + place) = {
            static_cast<uint32_t>(expert) - common_.first_expert[rank], order, weight};
      }
      if (lane() == 0) {
        auto* const head = at<RecordHead>(to);
        head->token = static_cast<uint32_t>(token);
        head->entries = static_cast<uint32_t>(__popc(its));
      }
    }
  }

  const DispatchLaunch& args_;
  const Common& common_;
  Turn& turn_;
  Shared& shared_;
  Route route_;
};

class DispatchReceive {
 public:
  __device__ DispatchReceive(const DispatchLaunch& args, Turn& turn, Shared& shared)
      : args_(args), common_(args.common), turn_(turn), shared_(shared) {}

  /// By all threads of a block.
  __device__ void run() {
    __shared__ Rows rows;
    rows_ = &rows;
    __syncthreads();  // of the send
    if (warp() == 0) take_cards();
    if (threadIdx.x == 0) rows.end = 0, rows.most = 0;
    __syncthreads();
    take_counts();
    __syncthreads();
    if (common_.layout == HEADRACE_MOE_BY_RANK) lay_out_sources();
    lay_out_experts();
    __syncthreads();
    if (is_clerk()) tell_rows();
    take_records();
    if (common_.zero_padding != 0 && common_.layout == HEADRACE_MOE_BY_EXPERT) zero_padding();
  }

 private:
  /// What threads of a block find together.
  struct Rows {
    uint32_t end;                          ///< of all
    uint32_t most;                         ///< of an expert
    uint32_t of_warps[block_warps];        ///< while they are added up
    uint32_t first_of_source[most_ranks];  ///< by rank
  };

  /// The block that tells what all know.
  [[nodiscard]] static __device__ bool is_clerk() { return blockIdx.x == gridDim.x - 1; }
  [[nodiscard]] __device__ uint64_t card(unsigned source) const {
    return common_.own_window() + common_.window.card_at(turn_.receives(), source);
  }
  /// Entries of earlier sources for an expert, and then the first row of those of this one.
  [[nodiscard]] __device__ uint32_t& place(unsigned source, unsigned expert) const {
    return shared_.pool[source * common_.own_experts + expert];
  }
  [[nodiscard]] __device__ uint32_t count_on_card(unsigned source, unsigned expert) const {
    return *at<const uint32_t>(common_.own_window() + common_.window.counts_at(turn_.receives(), source) +
                               expert * sizeof(uint32_t));
  }

  __device__ void take_cards() {
    for (unsigned source = lane(); source < common_.window.ranks; source += warp_lanes)
      shared_.records[source] = take_card(source);
    __syncwarp();
  }
  /// All blocks go by the first one that has waited: rows of other sources lie behind those of this one.
  __device__ uint32_t take_card(unsigned source) {
    if (!turn_.is_active(source)) return 0;
    const Awaited awaited{source, HEADRACE_MOE_COUNTS, card(source) + offsetof(CardHead, epoch),
                          turn_.receives()};
    const uint64_t found = turn_.waits_for(awaited) ? card_came : card_is_missed;
    // Read beside the exchange; of a card that is missed it is not used.
    const uint64_t records = look_at(card(source) + offsetof(CardHead, records));
    const uint64_t before = swap_if(turn_.state(offsetof(State, cards)) + source * 8, 0, found);
    if ((before == 0 ? found : before) == card_is_missed) return 0;
    if (records <= common_.window.slots) return static_cast<uint32_t>(records);
    turn_.leave_out({source, HEADRACE_MOE_COUNTS, 0, common_.window.slots + uint64_t{1}},
                    HEADRACE_MOE_CORRUPT, records);
    return 0;
  }

  __device__ void take_counts() {
    for (unsigned source = warp(); source < common_.window.ranks; source += block_warps) {
      const uint32_t records = shared_.records[source];
      uint64_t sum = 0;
      for (unsigned expert = lane(); expert < common_.own_experts; expert += warp_lanes) {
        const uint32_t count = records == 0 ? 0 : count_on_card(source, expert);
        place(source, expert) = count;
        sum += count;
      }
      for (unsigned step = warp_lanes / 2; step != 0; step /= 2) sum += __shfl_xor_sync(all_lanes, sum, step);
      const uint64_t most = uint64_t{records} * common_.top_k();
      if (sum <= most) continue;
      for (unsigned expert = lane(); expert < common_.own_experts; expert += warp_lanes)
        place(source, expert) = 0;
      if (lane() != 0) continue;
      shared_.records[source] = 0;
      turn_.leave_out({source, HEADRACE_MOE_COUNTS, 0, most + 1}, HEADRACE_MOE_CORRUPT, sum);
    }
  }

  __device__ void lay_out_sources() {
    const unsigned source = threadIdx.x;
    if (source >= common_.window.ranks) return;
    uint32_t first = 0;
    for (unsigned before = 0; before < source; ++before) first += shared_.records[before];
    rows_->first_of_source[source] = first;
    if (source == common_.window.ranks - 1) rows_->end = first + shared_.records[source];
  }

  __device__ void lay_out_experts() {
    const bool by_expert = common_.layout == HEADRACE_MOE_BY_EXPERT;
    uint32_t first_of_tile = 0;
    for (unsigned tile = 0; tile < common_.own_experts; tile += block_threads) {
      const unsigned expert = tile + threadIdx.x;
      const bool is_expert = expert < common_.own_experts;
      const uint32_t total = is_expert ? add_up_sources(expert) : 0;
      const auto rows = static_cast<uint32_t>(headrace::moe::next_expert_at(0, total, common_.row_alignment));
      uint32_t end_of_tile = 0;
      const uint32_t before = rows_before(rows, end_of_tile);
      uint32_t first = first_of_tile + before;
      first_of_tile += end_of_tile;
      if (!by_expert) first = static_cast<uint32_t>(expert * common_.output_rows);
      if (is_expert) begin_expert(expert, first, total);
    }
    if (threadIdx.x == 0 && by_expert) rows_->end = first_of_tile;
    if (threadIdx.x == 0 && common_.layout == HEADRACE_MOE_BATCHED)
      rows_->end = static_cast<uint32_t>(common_.all_rows());
  }
  /// Returns the entries of all sources.
  __device__ uint32_t add_up_sources(unsigned expert) const {
    uint32_t total = 0;
    for (unsigned source = 0; source < common_.window.ranks; ++source) {
      const uint32_t count = place(source, expert);
      place(source, expert) = total;
      total += count;
    }
    return total;
  }
  /// By all threads: what the threads before have together, and in `all` what all have.
  __device__ uint32_t rows_before(uint32_t rows, uint32_t& all) {
    uint32_t sum = rows;
    for (unsigned step = 1; step < warp_lanes; step *= 2) {
      const uint32_t other = __shfl_up_sync(all_lanes, sum, step);
      if (lane() >= step) sum += other;
    }
    __syncthreads();  // the tile before has been read
    if (lane() == warp_lanes - 1) rows_->of_warps[warp()] = sum;
    __syncthreads();
    uint32_t before = 0;
    for (unsigned of = 0; of < block_warps; ++of) {
      if (of < warp()) before += rows_->of_warps[of];
      all += rows_->of_warps[of];
    }
    return before + sum - rows;
  }
  __device__ void begin_expert(unsigned expert, uint32_t first, uint32_t total) {
    if (common_.layout != HEADRACE_MOE_BY_RANK)
      for (unsigned source = 0; source < common_.window.ranks; ++source) place(source, expert) += first;
    if (!is_clerk()) return;
    atomicMax(&rows_->most, total);
    if (args_.out_counts != 0) at<int32_t>(args_.out_counts)[expert] = static_cast<int32_t>(total);
    if (args_.out_first_rows != 0 && common_.layout != HEADRACE_MOE_BY_RANK)
      at<int64_t>(args_.out_first_rows)[expert] = first;
  }

  /// By the clerk, what concerns all rows.
  __device__ void tell_rows() {
    const unsigned source = threadIdx.x;
    const bool by_rank = common_.layout == HEADRACE_MOE_BY_RANK;
    if (source < common_.window.ranks) {
      at<RoutingHead>(common_.routing)->records[source] = shared_.records[source];
      if (by_rank && args_.out_first_rows != 0)
        at<int64_t>(args_.out_first_rows)[source] = rows_->first_of_source[source];
    }
    if (threadIdx.x != 0) return;
    if (args_.out_first_rows != 0)
      at<int64_t>(args_.out_first_rows)[by_rank ? common_.window.ranks : common_.own_experts] = rows_->end;
    const uint32_t needed = common_.layout == HEADRACE_MOE_BATCHED ? rows_->most : rows_->end;
    if (needed > common_.output_rows)
      turn_.report({common_.rank, 0, 0, common_.output_rows}, HEADRACE_MOE_EXHAUSTED, needed);
  }

  __device__ void take_records() {
    const ChunkList chunks(shared_.records, common_.window.ranks);
    const uint32_t pieces =
        pieces_of(chunks.records(), common_.window.record.row_bytes, uint64_t{gridDim.x} * block_warps);
    Units units(turn_, chunks.slots() * pieces, common_.senders != gridDim.x);
    for (uint64_t unit = 0; units.next(unit);) {
      const ChunkList::Slot slot = chunks.slot(unit / pieces);
      if (slot.slot < slot.records)
        take_piece(slot.source, slot.slot, static_cast<uint32_t>(unit % pieces), pieces);
    }
  }

  /// By a warp.
  __device__ void take_piece(unsigned source, uint32_t slot, uint32_t piece, uint32_t pieces) {
    const WindowLayout& window = common_.window;
    bool has_come = true;
    if (lane() == 0)
      has_come = turn_.waits_for(
          {source, HEADRACE_MOE_ROWS,
           common_.own_window() + window.chunk_flag_at(turn_.receives(), source, chunk_of(slot)),
           turn_.receives()});
    __syncwarp();
    const uint64_t record = common_.own_window() + window.slot_at(turn_.receives(), source, slot);
    const uint32_t entries = at<const RecordHead>(record)->entries;
    Entry entry{};  // read beside the head, even if it has fewer
    if (lane() < common_.top_k())
      entry = *at<const Entry>(record + window.record.entries_at() + lane() * sizeof(Entry));
    const bool is_entry = lane() < entries;
    if (!__all_sync(all_lanes, has_come) || !is_sound(source, entries, entry, is_entry)) {
      if (piece == 0 && lane() == 0) *at<uint32_t>(common_.placed_count_at(source, slot)) = 0;
      return;
    }
    const uint32_t row = row_of(source, slot, entry, is_entry);
    if (piece == 0) note(source, slot, entries, entry, row);
    move(record, row, common_.layout == HEADRACE_MOE_BY_RANK ? 1 : entries, piece, pieces);
  }
  /// Nothing that others wrote leads to an address before it was compared.
  __device__ bool is_sound(unsigned source, uint32_t entries, const Entry& entry, bool is_entry) {
    const bool counts = entries != 0 && entries <= common_.top_k();
    const bool is_good = !is_entry || (entry.expert < common_.own_experts &&
                                       entry.order < uint64_t{common_.window.slots} * common_.top_k());
    const bool is_sound = __all_sync(all_lanes, is_good) && counts;
    if (!is_sound && lane() == 0)
      turn_.leave_out({source, HEADRACE_MOE_ROWS, 0, uint64_t{common_.top_k()} + 1}, HEADRACE_MOE_CORRUPT,
                      entries);
    return is_sound;
  }
  /// Of this lane's entry.
  __device__ uint32_t row_of(unsigned source, uint32_t slot, const Entry& entry, bool is_entry) const {
    if (common_.layout == HEADRACE_MOE_BY_RANK) {
      const uint32_t row = rows_->first_of_source[source] + slot;
      return lane() == 0 && row < common_.output_rows ? row : no_row;
    }
    if (!is_entry) return no_row;
    const uint64_t row = uint64_t{place(source, entry.expert)} + entry.order;
    return row < common_.end_of_expert(entry.expert) ? static_cast<uint32_t>(row) : no_row;
  }
  /// For combine.
  __device__ void note(unsigned source, uint32_t slot, uint32_t entries, const Entry& entry, uint32_t row) {
    const bool by_rank = common_.layout == HEADRACE_MOE_BY_RANK;
    const uint32_t count = by_rank ? 1 : entries;
    if (lane() == 0) *at<uint32_t>(common_.placed_count_at(source, slot)) = count;
    if (lane() < count)
      *at<Placed>(common_.placed_at(source, slot) + lane() * sizeof(Placed)) = {row,
                                                                                by_rank ? 1 : entry.weight};
    if (!by_rank) return;
    const uint32_t its_row = __shfl_sync(all_lanes, row, 0);
    if (its_row == no_row || lane() >= common_.top_k()) return;
    const uint64_t place = (uint64_t{its_row} * common_.top_k() + lane()) * 4;
    const bool is_entry = lane() < entries;
    if (args_.out_experts != 0)
      *at<int32_t>(args_.out_experts + place) = is_entry ? static_cast<int32_t>(entry.expert) : -1;
    if (args_.out_weights != 0) *at<float>(args_.out_weights + place) = is_entry ? entry.weight : 0;
  }
  __device__ void move(uint64_t record, uint32_t row, unsigned count, uint32_t piece, uint32_t pieces) const {
    const auto& layout = common_.window.record;
    const bool is_row = row != no_row;
    copy_to_all(record + layout.row_at(), is_row ? args_.out_rows + row * layout.row_bytes : 0, count,
                Share::of(layout.row_bytes / vector_bytes, piece, pieces));
#pragma unroll 1
    for (uint32_t i = 0; i < args_.out_columns.count; ++i) {
      const Column& column = args_.out_columns.of[i];
      copy_column({record + column.record_at, column.unit_bytes},
                  {is_row ? column.row_at(row) : 0, column.unit_stride}, count,
                  Share::of(column.units, piece, pieces), column.unit_bytes);
    }
  }

  /// The rows behind those of an expert.
  __device__ void zero_padding() const {
    const auto& record = common_.window.record;
    const unsigned last = common_.window.ranks - 1;
    for (uint64_t expert = uint64_t{blockIdx.x} * block_warps + warp(); expert < common_.own_experts;
         expert += uint64_t{gridDim.x} * block_warps) {
      const auto of = static_cast<unsigned>(expert);
      const uint64_t begin =
          uint64_t{place(last, of)} + (shared_.records[last] == 0 ? 0 : count_on_card(last, of));
      const uint64_t next = of + 1 < common_.own_experts ? place(0, of + 1) : rows_->end;
      const uint64_t end = next < common_.output_rows ? next : common_.output_rows;
      for (uint64_t row = begin; row < end; ++row) {
        zero_row(args_.out_rows + row * record.row_bytes, record.row_bytes);
#pragma unroll 1
        for (uint32_t i = 0; i < args_.out_columns.count; ++i) {
          const Column& column = args_.out_columns.of[i];
          zero_column({column.row_at(row), column.unit_stride}, column.units, column.unit_bytes);
        }
      }
    }
  }

  const DispatchLaunch& args_;
  const Common& common_;
  Turn& turn_;
  Shared& shared_;
  Rows* rows_ = nullptr;
};

__device__ __forceinline__ void dispatch(const DispatchLaunch& args) {
  __shared__ Shared shared;
  Turn turn(args.common, op_dispatch);
  const bool sends = (args.common.halves & HEADRACE_MOE_SEND) != 0;
  const bool receives = (args.common.halves & HEADRACE_MOE_RECEIVE) != 0;
  if (turn.begins()) {
    if (sends && blockIdx.x < args.common.senders) DispatchSend(args, turn, shared).run();
    if (receives) DispatchReceive(args, turn, shared).run();
  }
  turn.end(receives ? offsetof(PeerWords, dispatch_taken) : Turn::no_word);
}

}  // namespace headrace::kernels::moe
