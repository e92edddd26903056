// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe/moe.hpp"

#include "kernels/common/kernel_set.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace headrace::kernels::moe {
namespace {

static_assert(sizeof(DispatchLaunch) < 4096 && sizeof(CombineLaunch) < 4096, "an argument of any driver");

struct Functions {
  void *dispatch, *combine;
};

constexpr FamilyKernel family_kernels[] = {
    {"headrace_moe_dispatch", offsetof(Functions, dispatch)},
    {"headrace_moe_combine", offsetof(Functions, combine)},
};
static_assert(std::size(family_kernels) * sizeof(void*) == sizeof(Functions));

constexpr std::uint32_t default_blocks = 32;
constexpr std::uint64_t both_halves = HEADRACE_MOE_SEND | HEADRACE_MOE_RECEIVE;

std::uint64_t bytes_of_element(std::int32_t dtype) {
  if (dtype == HEADRACE_FLOAT32) return 4;
  return dtype == HEADRACE_FLOAT16 || dtype == HEADRACE_BFLOAT16 ? 2 : 0;
}

bool is_possible(const headrace_moe_rank_v1& rank) {
  const auto within = [](std::uint64_t value, std::uint64_t least, std::uint64_t most) {
    return value >= least && value <= most;
  };
  return within(rank.ranks, 1, most_ranks) && rank.rank < rank.ranks && within(rank.top_k, 1, most_top_k) &&
         within(rank.max_tokens, 1, 1u << 20) && within(rank.row_bytes, 1, 1u << 24) &&
         rank.row_bytes % vector_bytes == 0 && rank.scale_bytes % 4 == 0 &&
         within(rank.hidden * bytes_of_element(rank.combine_dtype), 1, 1u << 24) &&
         rank.hidden * bytes_of_element(rank.combine_dtype) % vector_bytes == 0 &&
         rank.layout <= HEADRACE_MOE_BY_RANK && within(rank.row_alignment, 1, 65536) &&
         rank.output_rows <= std::uint64_t{1} << 31;
}

/// The most experts of a rank; 0: the list is not possible.
std::uint32_t most_experts(const headrace_moe_rank_v1& rank) {
  std::uint32_t most = 0;
  for (std::uint32_t i = 0; i < rank.ranks; ++i) {
    if (rank.first_expert[i + 1] < rank.first_expert[i]) return 0;
    most = std::max(most, rank.first_expert[i + 1] - rank.first_expert[i]);
  }
  const bool is_good = rank.first_expert[0] == 0 &&
                       rank.first_expert[rank.ranks] <= HEADRACE_MOE_MOST_EXPERTS &&
                       rank.ranks * most <= HEADRACE_MOE_MOST_PLACES;
  return is_good ? most : 0;
}

std::uint64_t window_bytes(const headrace_moe_rank_v1* rank) {
  const auto common = common_of(*rank);
  return common ? common->window.bytes() : 0;
}
std::uint64_t state_bytes(const headrace_moe_rank_v1* rank) {
  const auto common = common_of(*rank);
  return common ? common->state_bytes() : 0;
}
std::uint64_t routing_bytes(const headrace_moe_rank_v1* rank) {
  const auto common = common_of(*rank);
  return common ? common->routing_bytes() : 0;
}

std::uint32_t most_blocks_of(const KernelSet& set, std::uint32_t sharing) {
  return sharing == 0 ? 0 : std::min(set.multiprocessors() / sharing, most_blocks);
}
std::uint32_t most_blocks_entry(void* kernels, std::uint32_t sharing) {
  return most_blocks_of(KernelSet::of(kernels), sharing);
}

/// 0: more than there can be.
std::uint32_t blocks_of(const KernelSet& set, const headrace_moe_rank_v1& rank) {
  const std::uint32_t most = most_blocks_of(set, rank.sharing);
  if (rank.blocks == 0) return std::min(default_blocks, most);
  return rank.blocks <= most ? rank.blocks : 0;
}

/// All blocks send first, but where much is to be done in both halves: then a quarter takes what comes.
std::uint32_t senders_of(std::uint32_t blocks, std::uint64_t halves, bool is_small) {
  return halves == both_halves && !is_small ? blocks - blocks / 4 : blocks;
}

/// What both operations need of a rank.
std::optional<Common> common_of_launch(const headrace_moe_rank_v1& rank, std::uint64_t routing,
                                       std::uint32_t halves) {
  std::optional<Common> common = common_of(rank);
  const bool is_good = common && rank.state != 0 && rank.status != 0 && routing != 0 && halves != 0 &&
                       (halves & ~both_halves) == 0 &&
                       std::all_of(rank.windows, rank.windows + rank.ranks,
                                   [](std::uint64_t window) { return window != 0 && window % 128 == 0; });
  if (!is_good) return {};
  common->routing = routing;
  common->halves = halves;
  return common;
}

bool are_rows(std::uint64_t address, std::uint64_t stride, std::uint64_t row_bytes, std::uint64_t unit) {
  return address != 0 && address % unit == 0 && stride % unit == 0 && stride >= row_bytes;
}

bool is_possible(const headrace_moe_dispatch_v1& args, const Common& common) {
  const auto& record = common.window.record;
  const bool sends = (args.halves & HEADRACE_MOE_SEND) != 0 && args.tokens != 0;
  const bool receives = (args.halves & HEADRACE_MOE_RECEIVE) != 0 && common.all_rows() != 0;
  const bool has_scales = record.scale_bytes != 0;
  if (args.tokens > common.max_tokens || (args.experts_bytes != 4 && args.experts_bytes != 8)) return false;
  if (sends && (!are_rows(args.rows, args.row_stride, record.row_bytes, vector_bytes) ||
                (has_scales && !are_rows(args.scales, args.scale_stride, record.scale_bytes, 4))))
    return false;
  return !receives || (args.out_rows != 0 && args.out_rows % vector_bytes == 0 &&
                       (!has_scales || (args.out_scales != 0 && args.out_scales % 4 == 0)));
}

bool is_possible(const headrace_moe_combine_v1& args, const Common& common) {
  const std::uint64_t bytes = common.window.partial_bytes;
  const bool sends = (args.halves & HEADRACE_MOE_SEND) != 0 && common.all_rows() != 0;
  const bool receives = (args.halves & HEADRACE_MOE_RECEIVE) != 0 && args.sums != 0;
  return (!sends || are_rows(args.results, args.result_stride, bytes, vector_bytes)) &&
         (!receives || (are_rows(args.sums, args.sum_stride, bytes, vector_bytes) &&
                        args.biases[0] % vector_bytes == 0 && args.biases[1] % vector_bytes == 0));
}

std::int32_t dispatch(void* kernels, const headrace_moe_dispatch_v1* args, void* stream) {
  if (args->struct_size < sizeof *args) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  const std::uint32_t blocks = blocks_of(set, *args->rank);
  const auto launch = dispatch_of(*args, blocks);
  if (!launch) return invalid_value;
  return set.launch(set.functions_of<Functions>(family).dispatch, blocks, block_threads, *launch, stream);
}

std::int32_t combine(void* kernels, const headrace_moe_combine_v1* args, void* stream) {
  if (args->struct_size < sizeof *args) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  const std::uint32_t blocks = blocks_of(set, *args->rank);
  const auto launch = combine_of(*args, blocks);
  if (!launch) return invalid_value;
  return set.launch(set.functions_of<Functions>(family).combine, blocks, block_threads, *launch, stream);
}

constexpr headrace_moe_v1 table{{sizeof table, HEADRACE_MOE_FAMILY_VERSION, 0},
                                window_bytes,
                                state_bytes,
                                routing_bytes,
                                most_blocks_entry,
                                dispatch,
                                combine};

}  // namespace

constinit const Family family{HEADRACE_MOE_FAMILY, &table.family, family_kernels, sizeof(Functions)};

std::optional<Common> common_of(const headrace_moe_rank_v1& rank) {
  const std::uint32_t most = most_experts(rank);
  if (!is_possible(rank) || most == 0) return {};
  Common made{};
  const auto slots = static_cast<std::uint32_t>(headrace::moe::round_up(rank.max_tokens, chunk_slots));
  made.window = {rank.ranks,
                 1,
                 slots,
                 most,
                 {rank.top_k, rank.row_bytes, rank.scale_bytes},
                 rank.hidden * bytes_of_element(rank.combine_dtype)};
  made.rank = rank.rank;
  made.experts = rank.first_expert[rank.ranks];
  made.own_experts = rank.first_expert[rank.rank + 1] - rank.first_expert[rank.rank];
  made.visits = std::min(rank.top_k, rank.ranks);
  made.max_tokens = rank.max_tokens;
  made.layout = rank.layout;
  made.row_alignment = rank.row_alignment;
  made.zero_padding = rank.zero_padding;
  made.output_rows = rank.output_rows;
  made.state = rank.state, made.active = rank.active, made.abort = rank.abort, made.status = rank.status;
  made.timeout_ns =
      rank.timeout_ns < 0 ? 0 : std::max<std::uint64_t>(static_cast<std::uint64_t>(rank.timeout_ns), 1);
  std::copy_n(rank.windows, rank.ranks, made.windows);
  std::copy_n(rank.first_expert, rank.ranks + 1, made.first_expert);
  return made;
}

std::optional<DispatchLaunch> dispatch_of(const headrace_moe_dispatch_v1& args, std::uint32_t blocks) {
  std::optional<Common> common = common_of_launch(*args.rank, args.routing, args.halves);
  if (blocks == 0 || !common || !is_possible(args, *common)) return {};
  const bool small = is_small(args.tokens, common->top_k());
  common->senders = senders_of(blocks, args.halves, small);
  return DispatchLaunch{.common = *common,
                        .experts_bytes = args.experts_bytes,
                        .tokens = args.tokens,
                        .tokens_at = args.tokens_at,
                        .rows = args.rows,
                        .row_stride = args.row_stride,
                        .scales = args.scales,
                        .scale_stride = args.scale_stride,
                        .experts = args.experts,
                        .weights = args.weights,
                        .out_rows = args.out_rows,
                        .out_scales = args.out_scales,
                        .out_counts = args.out_counts,
                        .out_first_rows = args.out_first_rows,
                        .out_experts = args.out_experts,
                        .out_weights = args.out_weights};
}

std::optional<CombineLaunch> combine_of(const headrace_moe_combine_v1& args, std::uint32_t blocks) {
  std::optional<Common> common = common_of_launch(*args.rank, args.routing, args.halves);
  if (blocks == 0 || !common || !is_possible(args, *common)) return {};
  // The tokens of the routing are not known here.
  const bool small = is_small(common->max_tokens, common->top_k());
  common->senders = senders_of(blocks, args.halves, small);
  return CombineLaunch{.common = *common,
                       .dtype = args.rank->combine_dtype,
                       .weighted = args.weighted,
                       .accumulate = args.accumulate,
                       .results = args.results,
                       .result_stride = args.result_stride,
                       .sums = args.sums,
                       .sum_stride = args.sum_stride,
                       .biases = {args.biases[0], args.biases[1]}};
}

}  // namespace headrace::kernels::moe
