// SPDX-License-Identifier: Apache-2.0
// Which place each entry goes to, where several hold the expert that a token names (src/moe/balance.hpp). A
// launch of its own before a dispatch: one block, which reads the tables that hold now.
#pragma once

#include "kernels/moe/route.cuh"
#include "moe/balance.hpp"

namespace headrace::kernels::moe {

class Chooser {
 public:
  __device__ Chooser(const ChooseLaunch& args, const Turn& turn, Shared& shared)
      : args_(args), common_(args.common), turn_(turn), shared_(shared) {
    entries_ = given_tokens(args.tokens, args.tokens_at) * common_.top_k();
    const uint32_t fitting = pool_words / args.replicas.experts;
    counters_ = fitting < block_warps ? fitting : block_warps;
  }

  /// By all threads of the block.
  __device__ void run() const {
    if (args_.replicas.choice == HEADRACE_MOE_LEAST_LOADED) return choose_least_loaded();
    for (unsigned i = threadIdx.x; i < counters_ * args_.replicas.experts; i += block_threads)
      shared_.pool[i] = 0;
    __syncthreads();
    count_entries();
    __syncthreads();
    add_up_warps();
    __syncthreads();
    choose_by_order();
  }

 private:
  /// The places of an expert.
  struct Places {
    int32_t begin = 0;
    uint32_t count = 0;  ///< 0: the entry goes nowhere
  };

  [[nodiscard]] __device__ const int32_t* list() const { return at<const int32_t>(args_.replicas.places); }
  [[nodiscard]] __device__ uint32_t& chosen(uint64_t entry) const {
    return *at<uint32_t>(common_.chosen_at() + entry * 4);
  }
  [[nodiscard]] __device__ uint32_t& counter(unsigned of_warp, uint32_t expert) const {
    return shared_.pool[of_warp * args_.replicas.experts + expert];
  }
  /// Of a counting warp. A thread has the same ones each time.
  [[nodiscard]] __device__ Share entries_of_warp() const { return Share::of(entries_, warp(), counters_); }

  /// -1: none, or one that cannot be.
  [[nodiscard]] __device__ int64_t expert_of(uint64_t entry) const {
    const int64_t given = number_at(args_.experts, args_.experts_bytes, entry);
    return given >= 0 && given < int64_t{args_.replicas.experts} ? given : -1;
  }
  [[nodiscard]] __device__ Places places_of(int64_t expert) const {
    if (expert < 0) return {};
    const auto* const first = at<const int32_t>(args_.replicas.first) + expert;
    const bool is_sound =
        first[0] >= 0 && first[1] > first[0] && first[1] - first[0] <= static_cast<int64_t>(common_.experts);
    return is_sound ? Places{first[0], static_cast<uint32_t>(first[1] - first[0])} : Places{};
  }
  [[nodiscard]] __device__ bool is_place(int32_t place) const {
    return place >= 0 && static_cast<uint32_t>(place) < common_.experts;
  }
  [[nodiscard]] __device__ bool is_active(int32_t place) const {
    return is_place(place) && turn_.is_active(common_.rank_of(static_cast<uint32_t>(place)));
  }
  /// Says what is wrong with an entry. It goes nowhere.
  __device__ void refuse(uint64_t entry) const {
    const int64_t given = number_at(args_.experts, args_.experts_bytes, entry);
    if (given == -1) return;
    turn_.report({common_.rank, 0, 0, entry},
                 expert_of(entry) < 0 ? HEADRACE_MOE_WRONG_EXPERT : HEADRACE_MOE_WRONG_PLACE,
                 static_cast<uint64_t>(given));
  }
  __device__ void choose(uint64_t entry, int32_t place) const {
    if (!is_place(place)) refuse(entry);
    chosen(entry) = is_place(place) ? static_cast<uint32_t>(place) : no_row;
  }

  // --- in turn and by share: by the number of entries for the same expert before each

  __device__ void count_entries() const {
    if (warp() >= counters_) return;
    number_entries(
        entries_of_warp(), [this](uint64_t entry) { return expert_of(entry); },
        [this](uint32_t expert) -> uint32_t& { return counter(warp(), expert); },
        [this](uint64_t entry, uint32_t order) { chosen(entry) = order; });
  }
  __device__ void add_up_warps() const {
    for (unsigned expert = threadIdx.x; expert < args_.replicas.experts; expert += block_threads)
      static_cast<void>(add_up(counters_, [&](unsigned of) -> uint32_t& { return counter(of, expert); }));
  }
  __device__ void choose_by_order() const {
    if (warp() >= counters_) return;
    const Share share = entries_of_warp();
    for (uint64_t entry = share.begin + lane(); entry < share.end; entry += warp_lanes) {
      const int64_t expert = expert_of(entry);
      const Places places = places_of(expert);
      if (places.count == 0) {
        choose(entry, -1);
        continue;
      }
      const uint64_t order = uint64_t{chosen(entry)} + counter(warp(), static_cast<uint32_t>(expert));
      uint32_t replica = first_choice(static_cast<uint64_t>(expert), places, order);
      for (uint32_t i = 0; i < places.count && !is_active(list()[places.begin + replica]); ++i)
        replica = replica + 1 == places.count ? 0 : replica + 1;
      choose(entry, list()[places.begin + replica]);
    }
  }
  [[nodiscard]] __device__ uint32_t first_choice(uint64_t expert, const Places& places,
                                                 uint64_t order) const {
    if (args_.replicas.choice == HEADRACE_MOE_IN_TURN)
      return headrace::moe::replica_in_turn(common_.rank / common_.group_size(), order, places.count);
    const uint64_t before =
        args_.replicas.before == 0 ? 0 : *at<const uint64_t>(args_.replicas.before + expert * 8);
    return headrace::moe::replica_by_share(at<const int64_t>(args_.replicas.until) + places.begin,
                                           places.count, before + order);
  }

  // --- least loaded: each choice needs the one before it, so one thread makes them

  static constexpr unsigned tile = 512;
  struct Tile {
    Places places[tile];
    int32_t chosen[tile];
    int64_t loads[most_ranks];
  };
  static_assert(sizeof(Tile) <= sizeof(Shared::pool));

  __device__ void choose_least_loaded() const {
    auto& shared = *reinterpret_cast<Tile*>(shared_.pool);
    if (threadIdx.x < common_.window.ranks)
      shared.loads[threadIdx.x] =
          args_.replicas.loads == 0 ? 0 : at<const int64_t>(args_.replicas.loads)[threadIdx.x];
    for (uint64_t first = 0; first < entries_; first += tile) {
      const uint64_t left = entries_ - first;
      const auto count = static_cast<unsigned>(left < tile ? left : tile);
      __syncthreads();
      for (unsigned i = threadIdx.x; i < count; i += block_threads)
        shared.places[i] = places_of(expert_of(first + i));
      __syncthreads();
      if (threadIdx.x == 0)
        for (unsigned i = 0; i < count; ++i) shared.chosen[i] = least_loaded(shared.places[i], shared.loads);
      __syncthreads();
      for (unsigned i = threadIdx.x; i < count; i += block_threads) choose(first + i, shared.chosen[i]);
    }
  }
  /// The first one of those that take part, else the first.
  [[nodiscard]] __device__ int32_t least_loaded(const Places& places, int64_t* loads) const {
    if (places.count == 0) return -1;
    int32_t best = list()[places.begin];
    uint32_t best_rank = most_ranks;
    for (uint32_t i = 0; i < places.count; ++i) {
      const int32_t place = list()[places.begin + i];
      if (!is_active(place)) continue;
      const uint32_t rank = common_.rank_of(static_cast<uint32_t>(place));
      if (best_rank == most_ranks || loads[rank] < loads[best_rank]) best = place, best_rank = rank;
    }
    if (best_rank == most_ranks && is_place(best)) best_rank = common_.rank_of(static_cast<uint32_t>(best));
    if (best_rank != most_ranks) ++loads[best_rank];
    return best;
  }

  const ChooseLaunch& args_;
  const Common& common_;
  const Turn& turn_;
  Shared& shared_;
  uint64_t entries_;
  uint32_t counters_;
};

__device__ __forceinline__ void choose(const ChooseLaunch& args) {
  __shared__ Shared shared;
  const Turn turn(args.common, op_dispatch);
  if (turn.begins()) Chooser(args, turn, shared).run();
}

}  // namespace headrace::kernels::moe
