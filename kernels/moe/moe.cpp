// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe/moe.hpp"

#include "kernels/common/kernel_set.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>

namespace headrace::kernels::moe {
namespace {

static_assert(sizeof(DispatchLaunch) < 4096 && sizeof(CombineLaunch) < 4096, "an argument of any driver");

struct Functions {
  void *dispatch, *combine, *combine_float8, *choose, *window_rows;
};

constexpr FamilyKernel family_kernels[] = {
    {"headrace_moe_dispatch", offsetof(Functions, dispatch)},
    {"headrace_moe_combine", offsetof(Functions, combine)},
    {"headrace_moe_combine_float8", offsetof(Functions, combine_float8)},
    {"headrace_moe_choose", offsetof(Functions, choose)},
    {"headrace_moe_window_rows", offsetof(Functions, window_rows)},
};
static_assert(std::size(family_kernels) * sizeof(void*) == sizeof(Functions));

constexpr std::uint32_t default_blocks = 32;
constexpr std::uint64_t most_column = 1u << 20;  // bytes of the scales or of a payload of a row
constexpr std::uint64_t both_halves = HEADRACE_MOE_SEND | HEADRACE_MOE_RECEIVE;

std::uint64_t bytes_of_element(std::int32_t dtype) {
  if (dtype == HEADRACE_FLOAT32) return 4;
  return dtype == HEADRACE_FLOAT16 || dtype == HEADRACE_BFLOAT16 ? 2 : 0;
}

std::uint64_t combine_row_bytes(const headrace_moe_rank_v1& rank) {
  return rank.hidden * bytes_of_element(rank.combine_dtype);
}

bool is_possible(const headrace_moe_rank_v1& rank) {
  const auto within = [](std::uint64_t value, std::uint64_t least, std::uint64_t most) {
    return value >= least && value <= most;
  };
  return within(rank.ranks, 1, most_ranks) && rank.rank < rank.ranks &&
         within(rank.group_size, 1, rank.ranks) && rank.ranks % rank.group_size == 0 &&
         within(rank.top_k, 1, most_top_k) && within(rank.max_tokens, 1, 1u << 20) &&
         within(rank.row_bytes, 1, 1u << 24) && rank.row_bytes % vector_bytes == 0 &&
         rank.scale_bytes % 4 == 0 && rank.scale_bytes <= most_column &&
         std::ranges::all_of(rank.payload_bytes, [](std::uint64_t bytes) { return bytes <= most_column; }) &&
         within(combine_row_bytes(rank), 1, 1u << 24) && combine_row_bytes(rank) % vector_bytes == 0 &&
         (rank.float8_combine == 0 || rank.hidden % 16 == 0) && rank.layout <= HEADRACE_MOE_BY_RANK &&
         within(rank.row_alignment, 1, 65536) && rank.output_rows <= std::uint64_t{1} << 31;
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

/// What all launches need of a rank.
std::optional<Common> common_of_launch(const headrace_moe_rank_v1& rank, std::uint64_t routing,
                                       std::uint32_t halves) {
  std::optional<Common> common = common_of(rank);
  const bool is_good = common && rank.state != 0 && rank.status != 0 && routing != 0 &&
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

bool are_scales(const headrace_moe_scales_v1& scales, std::uint64_t bytes) {
  const std::uint64_t unit = scales.unit_bytes;
  const std::uint64_t all = scales.address | static_cast<std::uint64_t>(scales.stride) |
                            static_cast<std::uint64_t>(scales.unit_stride) |
                            static_cast<std::uint64_t>(scales.expert_stride) | bytes;
  return scales.address != 0 && std::has_single_bit(unit) && unit <= 8 && all % unit == 0;
}

///   scales      null: they are made
///   payload(i)  the address of one
template <class Payload>
bool are_columns(const Common& common, const headrace_moe_scales_v1* scales, const Payload& payload) {
  const auto& record = common.window.record;
  if (scales != nullptr && record.scale_bytes != 0 && !are_scales(*scales, record.scale_bytes)) return false;
  for (std::uint32_t i = 0; i < HEADRACE_MOE_MOST_PAYLOADS; ++i)
    if (record.payload_bytes[i] != 0 && payload(i) == 0) return false;
  return true;
}

bool is_cast_possible(std::uint32_t cast, const headrace::moe::RecordLayout& record) {
  if (cast == 0) return true;
  if (cast == HEADRACE_MOE_CAST_FLOAT32)
    return record.scale_bytes == headrace::moe::float_scale_bytes(record.row_bytes);
  return cast == HEADRACE_MOE_CAST_UE8M0 &&
         record.scale_bytes == headrace::moe::ue8m0_scale_bytes(record.row_bytes);
}
std::uint64_t given_row_bytes(const headrace_moe_dispatch_v1& args, const Common& common) {
  return common.window.record.row_bytes * (args.cast == 0 ? 1 : 2);
}

bool has_replicas(const headrace_moe_dispatch_v1& args) {
  return args.replicas.experts != 0 && args.experts != 0 && (args.halves & HEADRACE_MOE_SEND) != 0;
}
bool are_possible(const headrace_moe_replicas_v1& replicas, const Common& common) {
  return replicas.experts <= common.experts && replicas.choice <= HEADRACE_MOE_BY_SHARE &&
         replicas.first != 0 && replicas.places != 0 &&
         (replicas.choice != HEADRACE_MOE_BY_SHARE || replicas.until != 0);
}

bool is_possible(const headrace_moe_dispatch_v1& args, const Common& common) {
  if (has_replicas(args) && !are_possible(args.replicas, common)) return false;
  const bool sends = (args.halves & HEADRACE_MOE_SEND) != 0 && args.tokens != 0;
  const bool receives = (args.halves & HEADRACE_MOE_RECEIVE) != 0 && common.all_rows() != 0;
  if (args.tokens > common.max_tokens || (args.experts_bytes != 4 && args.experts_bytes != 8)) return false;
  if (sends && (!are_rows(args.rows, args.row_stride, given_row_bytes(args, common), vector_bytes) ||
                !is_cast_possible(args.cast, common.window.record) ||
                !are_columns(common, args.cast == 0 ? &args.scales : nullptr,
                             [&](auto i) { return args.payloads[i].address; })))
    return false;
  return !receives || (args.out_rows != 0 && args.out_rows % vector_bytes == 0 &&
                       are_columns(common, &args.out_scales, [&](auto i) { return args.out_payloads[i]; }));
}

/// What lies side by side is moved in the widest units that fit.
Column column_of(std::uint64_t record_at, std::uint64_t address, std::int64_t stride, std::uint64_t bytes,
                 std::int64_t expert_stride = 0) {
  const std::uint64_t all = address | static_cast<std::uint64_t>(stride) |
                            static_cast<std::uint64_t>(expert_stride) | bytes | vector_bytes;
  const std::uint64_t unit = all & (~all + 1);
  Column made{};
  made.record_at = record_at, made.address = address, made.stride = stride,
  made.expert_stride = expert_stride;
  made.unit_bytes = static_cast<std::uint32_t>(unit), made.unit_stride = static_cast<std::int64_t>(unit);
  made.units = static_cast<std::uint32_t>(bytes / unit);
  return made;
}
/// `expert_rows`: 0 if the scales of all experts lie side by side.
Column column_of(const headrace_moe_scales_v1& scales, const Common& common, std::uint32_t expert_rows) {
  const auto& record = common.window.record;
  Column made =
      column_of(record.scales_at(), scales.address, scales.stride, record.scale_bytes, scales.expert_stride);
  made.expert_rows = expert_rows;
  if (scales.unit_stride == static_cast<std::int64_t>(scales.unit_bytes)) return made;
  made.unit_bytes = scales.unit_bytes, made.unit_stride = scales.unit_stride;
  made.units = static_cast<std::uint32_t>(record.scale_bytes / scales.unit_bytes);
  return made;
}

Columns sent_columns(const headrace_moe_dispatch_v1& args, const Common& common) {
  const auto& record = common.window.record;
  Columns made{};
  if (record.scale_bytes != 0 && args.cast == 0) made.of[made.count++] = column_of(args.scales, common, 0);
  for (std::uint32_t i = 0; i < HEADRACE_MOE_MOST_PAYLOADS; ++i)
    if (record.payload_bytes[i] != 0)
      made.of[made.count++] = column_of(record.payload_at(i), args.payloads[i].address,
                                        args.payloads[i].stride, record.payload_bytes[i]);
  return made;
}
Columns received_columns(const headrace_moe_dispatch_v1& args, const Common& common) {
  const auto& record = common.window.record;
  const bool is_apart = common.layout == HEADRACE_MOE_BATCHED && args.out_scales.expert_stride != 0;
  Columns made{};
  if (record.scale_bytes != 0)
    made.of[made.count++] =
        column_of(args.out_scales, common, is_apart ? static_cast<std::uint32_t>(common.output_rows) : 0);
  for (std::uint32_t i = 0; i < HEADRACE_MOE_MOST_PAYLOADS; ++i)
    if (record.payload_bytes[i] != 0)
      made.of[made.count++] =
          column_of(record.payload_at(i), args.out_payloads[i],
                    static_cast<std::int64_t>(record.payload_bytes[i]), record.payload_bytes[i]);
  return made;
}

/// A row of results is a partial.
bool may_be_in_window(const headrace_moe_rank_v1& rank) {
  return rank.layout == HEADRACE_MOE_BY_RANK && rank.float8_combine == 0;
}

bool is_possible(const headrace_moe_combine_v1& args, const Common& common) {
  const std::uint64_t bytes = combine_row_bytes(*args.rank);
  const bool sends = (args.halves & HEADRACE_MOE_SEND) != 0 && common.all_rows() != 0;
  const bool receives = (args.halves & HEADRACE_MOE_RECEIVE) != 0 && args.sums != 0;
  const bool is_window = args.in_window != 0;
  return (!is_window || may_be_in_window(*args.rank)) &&
         (!sends || is_window || are_rows(args.results, args.result_stride, bytes, vector_bytes)) &&
         (!receives || (are_rows(args.sums, args.sum_stride, bytes, vector_bytes) &&
                        args.biases[0] % vector_bytes == 0 && args.biases[1] % vector_bytes == 0));
}

std::int32_t dispatch(void* kernels, const headrace_moe_dispatch_v1* args, void* stream) {
  if (args->struct_size < sizeof *args) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  const std::uint32_t blocks = blocks_of(set, *args->rank);
  const auto launch = dispatch_of(*args, blocks);
  if (!launch) return invalid_value;
  if (const auto choose = choose_of(*args)) {
    const std::int32_t chosen =
        set.launch(set.functions_of<Functions>(family).choose, 1, block_threads, *choose, stream);
    if (chosen != succeeded) return chosen;
  }
  return set.launch(set.functions_of<Functions>(family).dispatch, blocks, block_threads, *launch, stream);
}

std::int32_t combine(void* kernels, const headrace_moe_combine_v1* args, void* stream) {
  if (args->struct_size < sizeof *args) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  const std::uint32_t blocks = blocks_of(set, *args->rank);
  const auto launch = combine_of(*args, blocks);
  if (!launch) return invalid_value;
  const auto& functions = set.functions_of<Functions>(family);
  return set.launch(launch->float8 != 0 ? functions.combine_float8 : functions.combine, blocks, block_threads,
                    *launch, stream);
}

std::int32_t combine_memory(void* kernels, const headrace_moe_combine_memory_v1* args, void* stream) {
  if (args->struct_size < sizeof *args) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  const auto launch = window_rows_of(*args);
  if (!launch) return invalid_value;
  return set.launch(set.functions_of<Functions>(family).window_rows, 1, block_threads, *launch, stream);
}

constexpr headrace_moe_v1 table{{sizeof table, HEADRACE_MOE_FAMILY_VERSION, 0},
                                window_bytes,
                                state_bytes,
                                routing_bytes,
                                most_blocks_entry,
                                dispatch,
                                combine,
                                combine_memory};

}  // namespace

constinit const Family family{HEADRACE_MOE_FAMILY, &table.family, family_kernels, sizeof(Functions)};

std::optional<Common> common_of(const headrace_moe_rank_v1& rank) {
  const std::uint32_t most = most_experts(rank);
  if (!is_possible(rank) || most == 0) return {};
  Common made{};
  const auto slots =
      static_cast<std::uint32_t>(headrace::moe::tokens_of_part(rank.max_tokens, rank.group_size));
  made.window = {
      rank.ranks,
      rank.group_size,
      slots,
      most,
      {rank.top_k, rank.row_bytes, rank.scale_bytes},
      rank.float8_combine != 0 ? headrace::moe::float8_partial_bytes(rank.hidden) : combine_row_bytes(rank)};
  std::ranges::copy(rank.payload_bytes, made.window.record.payload_bytes);
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
  if (blocks == 0 || args.halves == 0 || !common || !is_possible(args, *common)) return {};
  const bool small = is_small(args.tokens, common->top_k());
  common->senders = senders_of(blocks, args.halves, small);
  const bool is_chosen = has_replicas(args);
  return DispatchLaunch{.common = *common,
                        .experts_bytes = is_chosen ? 4 : args.experts_bytes,
                        .cast = args.cast,
                        .tokens = args.tokens,
                        .tokens_at = args.tokens_at,
                        .rows = args.rows,
                        .row_stride = args.row_stride,
                        .experts = is_chosen ? common->chosen_at() : args.experts,
                        .weights = args.weights,
                        .out_rows = args.out_rows,
                        .out_counts = args.out_counts,
                        .out_first_rows = args.out_first_rows,
                        .out_experts = args.out_experts,
                        .out_weights = args.out_weights,
                        .columns = sent_columns(args, *common),
                        .out_columns = received_columns(args, *common)};
}

std::optional<ChooseLaunch> choose_of(const headrace_moe_dispatch_v1& args) {
  std::optional<Common> common = common_of_launch(*args.rank, args.routing, args.halves);
  if (!common || !has_replicas(args)) return {};
  return ChooseLaunch{*common, args.experts_bytes, args.tokens, args.tokens_at, args.experts, args.replicas};
}

std::optional<CombineLaunch> combine_of(const headrace_moe_combine_v1& args, std::uint32_t blocks) {
  std::optional<Common> common = common_of_launch(*args.rank, args.routing, args.halves);
  if (blocks == 0 || args.halves == 0 || !common || !is_possible(args, *common)) return {};
  // The tokens of the routing are not known here.
  const bool small = is_small(common->max_tokens, common->top_k());
  common->senders = senders_of(blocks, args.halves, small);
  return CombineLaunch{.common = *common,
                       .dtype = args.rank->combine_dtype,
                       .float8 = args.rank->float8_combine,
                       .row_bytes = combine_row_bytes(*args.rank),
                       .weighted = args.weighted,
                       .accumulate = args.accumulate,
                       .in_window = args.in_window,
                       .results = args.results,
                       .result_stride = args.result_stride,
                       .sums = args.sums,
                       .sum_stride = args.sum_stride,
                       .biases = {args.biases[0], args.biases[1]}};
}

std::optional<WindowRowsLaunch> window_rows_of(const headrace_moe_combine_memory_v1& args) {
  std::optional<Common> common = common_of_launch(*args.rank, args.routing, 0);
  if (!common || args.of_ranks == 0 || args.of_ranks % 8 != 0 || !may_be_in_window(*args.rank)) return {};
  return WindowRowsLaunch{*common, args.of_ranks};
}

}  // namespace headrace::kernels::moe
