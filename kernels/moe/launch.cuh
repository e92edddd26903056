// SPDX-License-Identifier: Apache-2.0
// What kernels, their reference and host code share: the arguments of the kernels, and where things lie in
// the memory of a rank that others do not see. Windows are those of src/moe, on CPUs too.
#pragma once

#include "moe/cast.hpp"
#include "moe/epochs.hpp"
#include "moe/layout.hpp"
#include "moe/rows.hpp"
#include "moe/spread.hpp"

#include <headrace/plugin/kernels/moe_v1.h>

#include <stdint.h>

namespace headrace::kernels::moe {

using headrace::moe::CardHead;
using headrace::moe::chunk_of;
using headrace::moe::chunk_slots;
using headrace::moe::chunks_of;
using headrace::moe::Entry;
using headrace::moe::PeerWords;
using headrace::moe::RecordHead;
using headrace::moe::WindowLayout;

inline constexpr unsigned most_ranks = HEADRACE_MOE_MOST_RANKS, most_top_k = HEADRACE_MOE_MOST_TOP_K;
inline constexpr unsigned most_blocks = HEADRACE_MOE_MOST_BLOCKS;
inline constexpr unsigned warp_lanes = 32;
#ifndef HEADRACE_MOE_BLOCK_THREADS  // tests that run the device code on a CPU take fewer
#define HEADRACE_MOE_BLOCK_THREADS 512
#endif
inline constexpr unsigned block_threads = HEADRACE_MOE_BLOCK_THREADS,
                          block_warps = block_threads / warp_lanes;
inline constexpr unsigned vector_bytes = 16;

/// Of a block's shared memory: counters of warps for each expert, then the places of sources and experts.
inline constexpr unsigned pool_words = 10240;
static_assert(pool_words >= HEADRACE_MOE_MOST_PLACES && pool_words >= 2 * HEADRACE_MOE_MOST_EXPERTS);

/// Up to so many entries each block makes the whole route by itself, and waits for no other block.
inline constexpr unsigned small_entries = 2048;

enum Operation : uint32_t { op_dispatch = HEADRACE_MOE_DISPATCH, op_combine = HEADRACE_MOE_COMBINE };

/// At the beginning of the state of a rank. The last block of a launch sets what concerns that launch to 0.
struct State {
  uint64_t sent[2], received[2];  ///< operations that have ended, by kind
  uint64_t gone;                  ///< ranks that launches before this one have left out
  uint64_t gone_now;              ///< ranks that this launch has left out
  uint64_t over;                  ///< not 0: this rank does nothing more; `over_word` has made it
  uint64_t reported;              ///< this launch has written the status
  uint64_t next;                  ///< receiving blocks have taken so many units beyond their first ones
  uint32_t ended, met;            ///< blocks
  /// What all blocks make of the card of each source: whether it came, or is missed.
  uint64_t cards[most_ranks];
};
inline constexpr uint64_t card_came = 1, card_is_missed = 2;

/// Why a rank does nothing more (HEADRACE_MOE_LEFT_OUT or _ABORTED), and the rank that it waited for then.
HEADRACE_BOTH_SIDES uint64_t over_word(uint64_t reason, uint32_t peer) {
  return reason | uint64_t{peer} << 32;
}
HEADRACE_BOTH_SIDES uint64_t reason_of_over(uint64_t word) { return word & 0xffffffff; }
HEADRACE_BOTH_SIDES uint32_t peer_of_over(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

/// A row that a record has become.
struct Placed {
  uint32_t row;  ///< no_row: beyond the budget
  float weight;
};
inline constexpr uint32_t no_row = ~uint32_t{0};

/// At the beginning of a routing.
struct RoutingHead {
  uint64_t tokens;
  uint32_t records[most_ranks];  ///< that came of each source
};

/// The lists of a route: of a block that makes it by itself, or in the routing.
struct RouteLists {
  uint64_t orders;  ///< uint32_t of each entry: entries of this source for its expert before it
  uint64_t ranks;   ///< uint64_t of each token: a bit for each rank that it goes to
  uint64_t slots;   ///< uint32_t [tokens, visits]: its slot there, ascending by rank

  /// Lists that begin with a later token than the first.
  [[nodiscard]] HEADRACE_BOTH_SIDES RouteLists from(uint64_t token, uint32_t top_k, uint32_t visits) const {
    return {orders - token * top_k * 4, ranks - token * 8, slots - token * visits * 4};
  }
};

/// What a launch knows of its rank.
struct Common {
  WindowLayout window;
  uint32_t rank;
  uint32_t experts;  ///< of all ranks
  uint32_t own_experts;
  uint32_t visits;  ///< the most ranks that a token goes to
  uint32_t max_tokens;
  uint32_t layout;
  uint32_t row_alignment;
  uint32_t zero_padding;
  uint64_t output_rows;  ///< batched: of each expert
  uint32_t halves;
  uint32_t senders;  ///< the first blocks, which send before they receive
  uint64_t state, routing, active, abort, status;
  uint64_t timeout_ns;  ///< 0: none
  uint64_t windows[most_ranks];
  uint32_t first_expert[most_ranks + 1];

  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t top_k() const { return window.record.top_k; }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t own_window() const { return windows[rank]; }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t group_size() const { return window.group_size; }
  /// Among the ranks that hold the same tokens.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t member(uint32_t of) const { return of % window.group_size; }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t experts_of(uint32_t of) const {
    return first_expert[of + 1] - first_expert[of];
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t rank_of(uint32_t expert) const {
    return headrace::moe::rank_of_expert(first_expert, window.ranks, expert);
  }
  /// The first row that an expert may not use.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t end_of_expert(uint32_t expert) const {
    return layout == HEADRACE_MOE_BATCHED ? (expert + 1) * output_rows : output_rows;
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t all_rows() const {
    return layout == HEADRACE_MOE_BATCHED ? own_experts * output_rows : output_rows;
  }

  // --- the state
  /// uint32_t: units of a chunk for a rank that are done, until all are.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t done_at(uint32_t of, uint64_t chunk) const {
    return state + line(sizeof(State)) + (of * chunks_of(window.slots) + chunk) * sizeof(uint32_t);
  }
  /// uint32_t: entries of a block's tokens for each expert, then its records for each rank.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t totals_at(uint32_t block) const {
    return line(done_at(window.ranks, 0)) + uint64_t{block} * (experts + window.ranks) * sizeof(uint32_t);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES RouteLists lists_of_block(uint32_t block) const {
    constexpr uint64_t bytes = small_entries * 16;
    const uint64_t at = line(totals_at(most_blocks)) + block * bytes;
    return {at, at + small_entries * 4, at + small_entries * 12};
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t state_bytes() const {
    return lists_of_block(most_blocks).orders - state;
  }

  // --- the routing
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t entries() const { return uint64_t{max_tokens} * top_k(); }
  /// int32_t of each entry: its expert as the caller gave it, or -1.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t experts_at() const {
    return routing + line(sizeof(RoutingHead));
  }
  /// float of each entry.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t weights_at() const { return line(experts_at() + entries() * 4); }
  [[nodiscard]] HEADRACE_BOTH_SIDES RouteLists lists() const {
    const uint64_t orders = line(weights_at() + entries() * 4), ranks = line(orders + entries() * 4);
    return {orders, ranks, line(ranks + uint64_t{max_tokens} * 8)};
  }
  /// uint32_t: rows that a record has become.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t placed_count_at(uint32_t source, uint64_t slot) const {
    return line(lists().slots + uint64_t{max_tokens} * visits * 4) +
           (source * uint64_t{window.slots} + slot) * 4;
  }
  /// Placed [top_k].
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t placed_at(uint32_t source, uint64_t slot) const {
    return line(placed_count_at(window.ranks, 0)) +
           (source * uint64_t{window.slots} + slot) * top_k() * sizeof(Placed);
  }
  /// int32_t of each entry: the place that was chosen for it, or -1.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t chosen_at() const { return line(placed_at(window.ranks, 0)); }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t routing_bytes() const {
    return chosen_at() + entries() * 4 - routing;
  }

 private:
  [[nodiscard]] static HEADRACE_BOTH_SIDES uint64_t line(uint64_t n) {
    return headrace::moe::round_up(n, WindowLayout::line);
  }
};

/// Bytes beside each row: its scales, or a payload. In a record they lie side by side, in the caller's memory
/// in units at any strides.
struct Column {
  uint64_t record_at;  ///< in a record
  uint64_t address;
  int64_t stride;         ///< from one row to the next
  int64_t unit_stride;    ///< from one unit of a row to the next
  int64_t expert_stride;  ///< from one expert's rows to the next, if expert_rows is not 0
  uint32_t expert_rows;
  uint32_t units;
  uint32_t unit_bytes;  ///< 1, 2, 4, 8 or 16

  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t row_at(uint64_t row) const {
    if (expert_rows == 0) return address + row * static_cast<uint64_t>(stride);
    return address + row / expert_rows * static_cast<uint64_t>(expert_stride) +
           row % expert_rows * static_cast<uint64_t>(stride);
  }
};
struct Columns {
  Column of[1 + HEADRACE_MOE_MOST_PAYLOADS];
  uint32_t count;
};

struct DispatchLaunch {
  Common common;
  uint32_t experts_bytes;
  uint32_t cast;
  uint64_t tokens, tokens_at;
  uint64_t rows, row_stride;
  uint64_t experts, weights;
  uint64_t out_rows, out_counts, out_first_rows, out_experts, out_weights;
  Columns columns, out_columns;
};

/// Places for the entries of a dispatch, before it.
struct ChooseLaunch {
  Common common;
  uint32_t experts_bytes;
  uint64_t tokens, tokens_at;
  uint64_t experts;
  headrace_moe_replicas_v1 replicas;
};

struct CombineLaunch {
  Common common;
  int32_t dtype;
  uint32_t float8;     ///< partials travel as blocks
  uint64_t row_bytes;  ///< of results and sums
  uint32_t weighted;
  uint32_t accumulate;
  uint32_t in_window;  ///< results are in the windows
  uint64_t results, result_stride;
  uint64_t sums, sum_stride;
  uint64_t biases[2];
};

/// Where results go in windows, before a combine.
struct WindowRowsLaunch {
  Common common;
  uint64_t of_ranks;
};

/// A part of a list that some do together.
struct Share {
  uint64_t begin, end;
  [[nodiscard]] static HEADRACE_BOTH_SIDES Share of(uint64_t count, uint64_t part, uint64_t parts) {
    return {count * part / parts, count * (part + 1) / parts};
  }
};

/// A row is moved in so many pieces, each by a warp, so that few rows keep all warps busy.
HEADRACE_BOTH_SIDES uint32_t pieces_of(uint64_t rows, uint64_t row_bytes, uint64_t warps) {
  constexpr uint64_t least_bytes = 1024;
  const uint64_t wanted = rows == 0 ? 1 : warps / rows, most = row_bytes / least_bytes;
  const uint64_t pieces = wanted < most ? wanted : most;
  return pieces == 0 ? 1 : static_cast<uint32_t>(pieces);
}

/// Whether each block makes the whole route by itself.
HEADRACE_BOTH_SIDES bool is_small(uint64_t tokens, uint32_t top_k) { return tokens * top_k <= small_entries; }

}  // namespace headrace::kernels::moe
