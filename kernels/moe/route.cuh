// SPDX-License-Identifier: Apache-2.0
// A source's route: the order of each entry among those of its expert, and the slots of each token. Both are
// numbers of tokens before, so they are counted in three steps: within a warp's share, over the warps of a
// block, and over blocks. Up to small_entries each block counts all tokens and waits for no other block; its
// lists are in shared memory if they fit, because each step reads what the one before has written.
#pragma once

#include "kernels/moe/counters.cuh"

namespace headrace::kernels::moe {

/// Shared memory of a block: first it counts, with lists of a small route behind the counters, then it knows
/// places.
struct Shared {
  alignas(8) uint32_t pool[pool_words];
  uint32_t rank_counts[block_warps][most_ranks];
  uint32_t records[most_ranks];  ///< of this source for each rank, then of each source for this rank
  uint64_t rooms;                ///< ranks that may be written to
  uint64_t left_out;             ///< ranks that this block has left out
};

/// The tokens of a launch, which may be fewer than its host says.
__device__ __forceinline__ uint64_t given_tokens(uint64_t tokens, uint64_t tokens_at) {
  if (tokens_at == 0) return tokens;
  const int32_t given = *at<const int32_t>(tokens_at);
  const uint64_t wanted = given < 0 ? 0 : static_cast<uint64_t>(given);
  return wanted < tokens ? wanted : tokens;
}
/// An expert as a token names it.
__device__ __forceinline__ int64_t number_at(uint64_t experts, uint32_t bytes, uint64_t entry) {
  return bytes == 8 ? *at<const int64_t>(experts + entry * 8)
                    : int64_t{*at<const int32_t>(experts + entry * 4)};
}

class Route {
 public:
  __device__ Route(const DispatchLaunch& args, Turn& turn, Shared& shared)
      : args_(args), common_(args.common), turn_(turn), shared_(shared) {
    tokens_ = given_tokens(args.tokens, args.tokens_at);
    // A routing that is used again has the experts of so many tokens.
    if (args.experts == 0) {
      const uint64_t known = at<const RoutingHead>(common_.routing)->tokens;
      tokens_ = known < tokens_ ? known : tokens_;
    }
    const Share sent = tokens_of(common_.member(common_.rank));
    is_small_ = is_small(sent.end - sent.begin, common_.top_k());
    const Share share = Share::of(sent.end - sent.begin, blockIdx.x, common_.senders);
    own_ = is_small_ ? sent : Share{sent.begin + share.begin, sent.begin + share.end};
    const uint64_t list_words = words_of_lists();
    in_shared_ = is_small_ && list_words + common_.experts <= pool_words;
    if (in_shared_)
      lists_ = lists_in_pool(pool_words - list_words);
    else
      lists_ = is_small_ && !is_clerk() ? own_part_of(common_.lists_of_block(blockIdx.x)) : common_.lists();
    const auto fitting =
        static_cast<uint32_t>((pool_words - (in_shared_ ? list_words : 0)) / common_.experts);
    counters_ = fitting < block_warps ? fitting : block_warps;
  }

  [[nodiscard]] __device__ uint64_t tokens() const { return tokens_; }
  [[nodiscard]] __device__ bool is_small_route() const { return is_small_; }
  /// The block that sends the cards and keeps what concerns all tokens. All know a small route: then it is
  /// the last one, whose records are the fewest, so that the cards do not delay the first ones.
  [[nodiscard]] __device__ bool is_clerk() const {
    return blockIdx.x == (is_small_ ? common_.senders - 1 : 0);
  }
  /// The tokens that this block sends, or those whose route it knows.
  [[nodiscard]] __device__ Share own() const { return own_; }
  [[nodiscard]] __device__ const RouteLists& lists() const { return lists_; }

  /// By all threads of a sending block. `meanwhile()` is done by the last warp while others begin.
  template <class Meanwhile>
  __device__ void make(const Meanwhile& meanwhile) {
    for (unsigned i = threadIdx.x; i < counters_ * common_.experts; i += block_threads) shared_.pool[i] = 0;
    if (in_shared_) read_experts();
    if (warp() == block_warps - 1) meanwhile();
    __syncthreads();
    count_entries();
    count_tokens();
    __syncthreads();
    add_up_warps();
    if (!is_small_) add_up_blocks();
    __syncthreads();
    finish_orders();
    finish_slots();
    __syncthreads();
  }
  /// By all threads of a sending block, behind its records: what combine needs, and dispatches that use the
  /// routing again.
  __device__ void keep() const {
    if (is_clerk() && threadIdx.x == 0) at<RoutingHead>(common_.routing)->tokens = tokens_;
    if (is_small_ && !is_clerk()) return;
    keep_entries();
    if (in_shared_) keep_slots();
  }
  /// By all threads of a sending block, last. Other members of the group send the rest of the tokens: combine
  /// needs their slots, too. Blocks take members in turn, and wait for no other block.
  __device__ void make_of_others() {
    lists_ = common_.lists(), in_shared_ = false;
    for (unsigned member = blockIdx.x; member < common_.group_size(); member += common_.senders) {
      if (member == common_.member(common_.rank)) continue;
      own_ = tokens_of(member);
      __syncthreads();  // what is in shared memory has been read
      keep_entries();
      count_tokens();
      __syncthreads();
      if (threadIdx.x < common_.window.ranks) add_up_rank(threadIdx.x);
      __syncthreads();
      finish_slots();
    }
  }
  /// Entries for an expert, of all tokens that this rank sends. Of the clerk, by any thread, between add_up
  /// and the end of `make`.
  template <class Each>
  __device__ void each_total(const Each& each) const {
    for (unsigned expert = threadIdx.x; expert < common_.experts; expert += block_threads)
      each(expert, total_of(expert));
  }

  /// -1: none.
  [[nodiscard]] __device__ int32_t expert_of(uint64_t entry) const {
    if (args_.experts == 0) return *at<const int32_t>(common_.experts_at() + entry * 4);
    const int64_t given = number_at(args_.experts, args_.experts_bytes, entry);
    return given >= 0 && given < static_cast<int64_t>(common_.experts) ? static_cast<int32_t>(given) : -1;
  }
  /// The expert, if its rank takes part; else -1.
  [[nodiscard]] __device__ int32_t active_expert_of(uint64_t entry) const {
    if (in_shared_) return *at<const int32_t>(known_experts_ + entry * 4);
    return given_active_expert(entry);
  }
  [[nodiscard]] __device__ int32_t given_active_expert(uint64_t entry) const {
    const int32_t expert = expert_of(entry);
    return expert >= 0 && turn_.is_active(common_.rank_of(static_cast<uint32_t>(expert))) ? expert : -1;
  }
  [[nodiscard]] __device__ float weight_of(uint64_t entry) const {
    if (args_.weights != 0) return *at<const float>(args_.weights + entry * 4);
    return args_.experts == 0 ? *at<const float>(common_.weights_at() + entry * 4) : 1.0f;
  }

 private:
  [[nodiscard]] __device__ uint32_t& counter(unsigned of_warp, unsigned expert) const {
    return shared_.pool[of_warp * common_.experts + expert];
  }
  /// Those that a member of the group sends.
  [[nodiscard]] __device__ Share tokens_of(unsigned member) const {
    const auto range = headrace::moe::tokens_of_member(tokens_, common_.group_size(), member);
    return {range.begin, range.end};
  }
  /// Of the pool: slots and ranks of the tokens that this rank sends, experts and orders of their entries.
  [[nodiscard]] __device__ uint64_t words_of_lists() const {
    return headrace::moe::round_up((own_.end - own_.begin) * (2 + common_.visits + 2 * common_.top_k()), 2);
  }
  __device__ RouteLists lists_in_pool(uint64_t first_word) {
    const uint64_t tokens = own_.end - own_.begin;
    const auto ranks = reinterpret_cast<uint64_t>(shared_.pool + first_word);
    const uint64_t slots = ranks + tokens * 8, orders = slots + tokens * common_.visits * 4;
    known_experts_ = orders + tokens * common_.top_k() * 4 - own_.begin * common_.top_k() * 4;
    return own_part_of({orders, ranks, slots});
  }
  [[nodiscard]] __device__ RouteLists own_part_of(const RouteLists& lists) const {
    return lists.from(own_.begin, common_.top_k(), common_.visits);
  }
  __device__ void read_experts() const {
    for (uint64_t entry = own_.begin * common_.top_k() + threadIdx.x; entry < own_.end * common_.top_k();
         entry += block_threads)
      *at<int32_t>(known_experts_ + entry * 4) = given_active_expert(entry);
  }
  /// Entries of a counting warp; tokens of a warp.
  [[nodiscard]] __device__ Share entries_of_warp() const {
    const Share share = Share::of(own_.end - own_.begin, warp(), counters_);
    return {(own_.begin + share.begin) * common_.top_k(), (own_.begin + share.end) * common_.top_k()};
  }
  [[nodiscard]] __device__ Share tokens_of_warp() const {
    const Share share = Share::of(own_.end - own_.begin, warp(), block_warps);
    return {own_.begin + share.begin, own_.begin + share.end};
  }

  __device__ void count_entries() const {
    if (warp() >= counters_) return;
    number_entries(
        entries_of_warp(), [this](uint64_t entry) { return active_expert_of(entry); },
        [this](uint32_t expert) -> uint32_t& { return counter(warp(), expert); },
        [this](uint64_t entry, uint32_t order) { *at<uint32_t>(lists_.orders + entry * 4) = order; });
  }
  __device__ void keep_entries() const {
    if (args_.experts == 0 && args_.weights == 0) return;
    for (uint64_t entry = own_.begin * common_.top_k() + threadIdx.x; entry < own_.end * common_.top_k();
         entry += block_threads)
      keep(entry);
  }
  __device__ void keep(uint64_t entry) const {
    *at<float>(common_.weights_at() + entry * 4) = weight_of(entry);
    if (args_.experts == 0) return;
    const int32_t expert = expert_of(entry);
    *at<int32_t>(common_.experts_at() + entry * 4) = expert;
    if (expert >= 0) return;
    const int64_t given = number_at(args_.experts, args_.experts_bytes, entry);
    if (given != -1)
      turn_.report({common_.rank, 0, 0, entry}, HEADRACE_MOE_WRONG_EXPERT, static_cast<uint64_t>(given));
  }

  __device__ void keep_slots() const {
    const RouteLists to = common_.lists();
    for (uint64_t token = own_.begin + threadIdx.x; token < own_.end; token += block_threads)
      *at<uint64_t>(to.ranks + token * 8) = *at<const uint64_t>(lists_.ranks + token * 8);
    for (uint64_t i = own_.begin * common_.visits + threadIdx.x; i < own_.end * common_.visits;
         i += block_threads)
      *at<uint32_t>(to.slots + i * 4) = *at<const uint32_t>(lists_.slots + i * 4);
  }

  __device__ void count_tokens() const {
    const Share share = tokens_of_warp();
    uint32_t low = 0, high = 0;  // tokens for rank lane(), and for rank 32 + lane()
    for (uint64_t first = share.begin; first < share.end; first += warp_lanes) {
      const uint64_t token = first + lane();
      const bool is_token = token < share.end;
      uint64_t ranks = 0;
      for (uint32_t k = 0; is_token && k < common_.top_k(); ++k) {
        const int32_t expert = active_expert_of(token * common_.top_k() + k);
        if (expert >= 0) ranks |= bit_of(common_.rank_of(static_cast<uint32_t>(expert)));
      }
      if (is_token) *at<uint64_t>(lists_.ranks + token * 8) = ranks;
      uint64_t slot_at = lists_.slots + token * common_.visits * 4;
      for (unsigned rank = 0; rank < common_.window.ranks; ++rank) {
        const bool goes = (ranks >> rank & 1) != 0;
        const unsigned going = __ballot_sync(all_lanes, goes);
        const uint32_t before = __shfl_sync(all_lanes, rank < warp_lanes ? low : high, rank % warp_lanes);
        if (goes) {
          *at<uint32_t>(slot_at) = before + static_cast<uint32_t>(__popc(going & lanes_below()));
          slot_at += 4;
        }
        if (lane() == rank % warp_lanes)
          (rank < warp_lanes ? low : high) += static_cast<uint32_t>(__popc(going));
      }
    }
    shared_.rank_counts[warp()][lane()] = low;
    shared_.rank_counts[warp()][warp_lanes + lane()] = high;
  }

  /// Each counter then has what the warps before counted. Totals of the block go to its place in the state,
  /// and, of a small route, are those of all.
  __device__ void add_up_warps() const {
    const uint64_t totals = common_.totals_at(blockIdx.x);
    for (unsigned expert = threadIdx.x; expert < common_.experts; expert += block_threads) {
      *at<uint32_t>(totals + expert * 4) =
          add_up(counters_, [&](unsigned of) -> uint32_t& { return counter(of, expert); });
    }
    if (threadIdx.x >= common_.window.ranks) return;
    const uint32_t total = add_up_rank(threadIdx.x);
    *at<uint32_t>(totals + (common_.experts + threadIdx.x) * 4) = total;
    shared_.records[threadIdx.x] = total;
  }
  __device__ uint32_t add_up_rank(unsigned rank) const {
    return add_up(block_warps, [&](unsigned of) -> uint32_t& { return shared_.rank_counts[of][rank]; });
  }
  __device__ void add_up_blocks() const {
    turn_.meet();
    for (unsigned i = threadIdx.x; i < common_.experts + common_.window.ranks; i += block_threads) {
      uint32_t before = 0, all = 0;
      for (unsigned block = 0; block < common_.senders; ++block) {
        const uint32_t count = *at<const uint32_t>(common_.totals_at(block) + i * 4);
        if (block < blockIdx.x) before += count;
        all += count;
      }
      if (i < common_.experts) {
        for (unsigned of = 0; of < counters_; ++of) counter(of, i) += before;
      } else {
        const unsigned rank = i - common_.experts;
        for (unsigned of = 0; of < block_warps; ++of) shared_.rank_counts[of][rank] += before;
        shared_.records[rank] = all;
      }
    }
  }
  [[nodiscard]] __device__ uint32_t total_of(unsigned expert) const {
    if (is_small_) return *at<const uint32_t>(common_.totals_at(blockIdx.x) + expert * 4);
    uint32_t all = 0;
    for (unsigned block = 0; block < common_.senders; ++block)
      all += *at<const uint32_t>(common_.totals_at(block) + expert * 4);
    return all;
  }

  __device__ void finish_orders() const {
    if (warp() >= counters_) return;
    const Share share = entries_of_warp();
    for (uint64_t entry = share.begin + lane(); entry < share.end; entry += warp_lanes) {
      const int32_t expert = active_expert_of(entry);
      if (expert < 0) continue;
      const uint32_t before = counter(warp(), static_cast<unsigned>(expert));
      if (before != 0) *at<uint32_t>(lists_.orders + entry * 4) += before;  // 0 is not worth the read
    }
  }
  __device__ void finish_slots() const {
    const Share share = tokens_of_warp();
    for (uint64_t token = share.begin + lane(); token < share.end; token += warp_lanes) {
      uint64_t slot_at = lists_.slots + token * common_.visits * 4;
      for (uint64_t rest = *at<const uint64_t>(lists_.ranks + token * 8); rest != 0; rest &= rest - 1) {
        const auto rank = static_cast<unsigned>(__ffsll(static_cast<long long>(rest)) - 1);
        const uint32_t before = shared_.rank_counts[warp()][rank];
        if (before != 0) *at<uint32_t>(slot_at) += before;
        slot_at += 4;
      }
    }
  }

  const DispatchLaunch& args_;
  const Common& common_;
  Turn& turn_;
  Shared& shared_;
  uint64_t tokens_;
  Share own_;
  RouteLists lists_;
  uint64_t known_experts_ = 0;  ///< int32_t of each entry, if the lists are in shared memory
  uint32_t counters_;
  bool is_small_, in_shared_;
};

}  // namespace headrace::kernels::moe
