// SPDX-License-Identifier: Apache-2.0
#include "moe/device_rank.hpp"

#include "base/errors.hpp"
#include "moe/columns.hpp"
#include "moe/config.hpp"
#include "moe/replicas.hpp"
#include "moe/scales.hpp"
#include "moe/strides.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace headrace::moe {
namespace {

// In mapped host memory: what the GPU writes, and the masks that it copies. A mask only loses ranks, so there
// is a place for each. Then a word for each rank that the GPU tells.
constexpr std::size_t abort_at = 0, status_at = 64, one_at = 120, masks_at = 128;
constexpr std::size_t told_at = masks_at + 8 * moe_most_ranks, words_bytes = told_at + 8 * moe_most_ranks;
constexpr std::int64_t row_unit = 16;

headrace_moe_rank_v1 rank_of(const MoEConfig& config, const DeviceRank::Place& place) {
  headrace_moe_rank_v1 made{};
  made.ranks = static_cast<std::uint32_t>(config.ranks);
  made.rank = static_cast<std::uint32_t>(config.rank);
  made.group_size = static_cast<std::uint32_t>(config.group_size);
  made.top_k = static_cast<std::uint32_t>(config.top_k);
  made.max_tokens = static_cast<std::uint32_t>(config.max_tokens);
  made.row_bytes = static_cast<std::uint64_t>(config.row_bytes());
  made.scale_bytes = static_cast<std::uint64_t>(config.scale_bytes);
  std::ranges::copy(config.payload_bytes, made.payload_bytes);
  made.hidden = static_cast<std::uint64_t>(config.hidden);
  made.combine_dtype = static_cast<std::int32_t>(config.combine_dtype);
  made.float8_combine = config.float8_combine ? 1 : 0;
  made.layout = static_cast<std::uint32_t>(config.layout);
  made.row_alignment = static_cast<std::uint32_t>(config.row_alignment);
  made.zero_padding = config.zero_padding ? 1 : 0;
  made.output_rows = static_cast<std::uint64_t>(config.layout == MoELayout::batched ? config.rows_of_expert()
                                                                                    : config.output_rows());
  for (int rank = 0; rank <= config.ranks; ++rank)
    made.first_expert[rank] = static_cast<std::uint32_t>(config.first_expert(rank));
  made.sharing = static_cast<std::uint32_t>(place.sharing);
  made.blocks = static_cast<std::uint32_t>(place.blocks);
  made.timeout_ns = config.wait_limit.count();
  return made;
}

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

/// Kernels move whole units.
Result<void> check_place(std::string_view what, const void* pointer, std::int64_t stride, std::int64_t unit) {
  if (address(pointer) % static_cast<std::uint64_t>(unit) == 0 && stride % unit == 0) return {};
  return make_error(Code::invalid_argument,
                    "{} begin at {:#x} with a stride of {} bytes: kernels need multiples of {}", what,
                    address(pointer), stride, unit);
}

/// In their units scales may lie anywhere.
Result<void> check_scale_places(const void* scales, const ScaleLayout& of, std::int64_t expert_stride = 0) {
  for (const std::int64_t stride : {of.stride, of.unit_stride, expert_stride})
    HEADRACE_TRY_VOID(check_place("scales", scales, stride, of.unit_bytes));
  return {};
}

headrace_moe_scales_v1 scales_at(const void* scales, const ScaleLayout& of, std::int64_t expert_stride = 0) {
  return {address(scales),
          of.stride,
          of.unit_stride,
          expert_stride,
          static_cast<std::uint32_t>(of.unit_bytes),
          0};
}

headrace_moe_replicas_v1 replicas_at(const MoEReplicas& of) {
  return {static_cast<std::uint32_t>(of.experts),
          static_cast<std::uint32_t>(of.choice),
          address(of.first),
          address(of.places),
          address(of.loads),
          address(of.until),
          address(of.before)};
}

Code code_of(std::uint64_t reason) {
  switch (reason) {
    case HEADRACE_MOE_TIMED_OUT:
      return Code::timed_out;
    case HEADRACE_MOE_CORRUPT:
      return Code::corrupt;
    case HEADRACE_MOE_EXHAUSTED:
      return Code::exhausted;
    case HEADRACE_MOE_WRONG_EXPERT:
    case HEADRACE_MOE_WRONG_PLACE:
      return Code::invalid_argument;
    default:
      return Code::canceled;
  }
}

std::string_view name_of_awaited(std::uint32_t what) {
  constexpr std::string_view names[] = {"", "room", "counts", "rows", "sums"};
  return what < std::size(names) ? names[what] : names[0];
}

}  // namespace

Result<DeviceRank> DeviceRank::open(const MoEConfig& config, const Place& place) {
  HEADRACE_TRY_VOID(config.check());
  HEADRACE_TRY(family, Family::of(place.kernels, HEADRACE_MOE_FAMILY, HEADRACE_MOE_FAMILY_VERSION));
  const std::uint32_t most =
      family.table().most_blocks(family.kernels().set(), static_cast<std::uint32_t>(place.sharing));
  if (place.blocks < 0 || most == 0 || static_cast<std::uint32_t>(place.blocks) > most)
    return make_error(
        Code::invalid_argument,
        "{} blocks are wanted: {} ranks on one GPU can have at most {} each, which wait for one "
        "another and must run at once",
        place.blocks, place.sharing, most);
  HEADRACE_TRY(stream, gpu::Stream::make(place.kernels->shared_device()));
  HEADRACE_TRY(words, gpu::PinnedMemory::allocate(place.kernels->shared_device(), words_bytes));
  DeviceRank made(config, std::move(family), std::move(stream), std::move(words));
  made.rank_ = rank_of(config, place);
  HEADRACE_TRY_VOID(made.take_memory());
  return made;
}

Result<void> DeviceRank::take_memory() {
  const std::uint64_t bytes = family_.table().state_bytes(&rank_);
  if (bytes == 0)
    return make_error(
        Code::not_supported,
        "{} ranks times the experts of the rank that has the most are more than {}, which kernels "
        "can place",
        config_.ranks, HEADRACE_MOE_MOST_PLACES);
  HEADRACE_TRY(state, zeros(bytes));
  HEADRACE_TRY(active, zeros(sizeof(Mask)));
  state_ = std::move(state), active_ = std::move(active);
  rank_.state = state_.address(), rank_.active = active_.address();
  rank_.abort = words_.address() + abort_at, rank_.status = words_.address() + status_at;
  const std::uint64_t one = 1;
  std::memcpy(words_.bytes().data() + one_at, &one, sizeof one);
  return set_active(mask_of_all(rank_.ranks));
}

Result<gpu::DeviceMemory> DeviceRank::zeros(std::uint64_t bytes) const {
  const auto& device = family_.kernels().shared_device();
  HEADRACE_TRY(memory, gpu::DeviceMemory::allocate(device, bytes));
  const gpu::ContextGuard current(*device);
  HEADRACE_CUDA_TRY(device->driver(),
                    device->driver().memset_d8_async(memory.address(), 0, bytes, stream_.handle()),
                    "clear {} bytes", bytes);
  HEADRACE_TRY_VOID(stream_.wait_idle());
  return memory;
}

void DeviceRank::join(std::span<const std::uint64_t> windows) { std::ranges::copy(windows, rank_.windows); }

Result<DeviceRouting> DeviceRank::new_routing() const {
  HEADRACE_TRY(memory, zeros(family_.table().routing_bytes(&rank_)));
  return DeviceRouting(std::move(memory));
}

Result<void> DeviceRank::set_active(Mask ranks) {
  const auto& device = family_.kernels().shared_device();
  const gpu::ContextGuard current(*device);
  HEADRACE_CUDA_TRY(
      device->driver(),
      device->driver().memcpy_async(active_.address(), address(&ranks), sizeof ranks, stream_.handle()),
      "write the mask of active ranks");
  members_ = ranks;
  return stream_.wait_idle();
}

Result<void> DeviceRank::set_active(Mask ranks, cuda::Stream stream) {
  const auto& device = family_.kernels().shared_device();
  const gpu::ContextGuard current(*device);
  const auto write = [&](std::uint64_t to, std::size_t from) -> Result<void> {
    HEADRACE_CUDA_TRY(device->driver(),
                      device->driver().memcpy_async(to, words_.address() + from, sizeof(Mask), stream),
                      "write the mask of active ranks");
    return {};
  };
  const std::size_t mask_at = masks_at + 8 * static_cast<std::size_t>(std::popcount(ranks) - 1);
  std::memcpy(words_.bytes().data() + mask_at, &ranks, sizeof ranks);
  HEADRACE_TRY_VOID(write(active_.address(), mask_at));
  const std::uint64_t words = window_layout(config_).words_at(rank_.rank);
  for (Mask gone = std::exchange(members_, ranks) & ~ranks; gone != 0; gone &= gone - 1)
    HEADRACE_TRY_VOID(
        write(rank_.windows[std::countr_zero(gone)] + words + offsetof(PeerWords, left_out), one_at));
  return {};
}

template <class Address>
Result<Mask> DeviceRank::read_words(const Address& address_of) const {
  const auto& device = family_.kernels().shared_device();
  const gpu::ContextGuard current(*device);
  for (std::uint32_t rank = 0; rank < rank_.ranks; ++rank)
    HEADRACE_CUDA_TRY(device->driver(),
                      device->driver().memcpy_async(words_.address() + told_at + 8 * rank, address_of(rank),
                                                    sizeof(Mask), stream_.handle()),
                      "read who is left out");
  HEADRACE_TRY_VOID(stream_.wait_idle());
  Mask found = 0;
  for (std::uint32_t rank = 0; rank < rank_.ranks; ++rank) {
    Mask word = 0;
    std::memcpy(&word, words_.bytes().data() + told_at + 8 * rank, sizeof word);
    if (word != 0) found |= bit_of(rank);
  }
  return found;
}

Result<Mask> DeviceRank::left_out() const {
  const std::uint64_t word = window_layout(config_).words_at(rank_.rank) + offsetof(PeerWords, left_out);
  return read_words([&](std::uint32_t peer) { return rank_.windows[peer] + word; });
}

Result<Mask> DeviceRank::left_out_by() const {
  const WindowLayout layout = window_layout(config_);
  return read_words([&](std::uint32_t peer) {
    return rank_.windows[rank_.rank] + layout.words_at(peer) + offsetof(PeerWords, left_out);
  });
}

void DeviceRank::abort() const {
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(words_.bytes().data() + abort_at), 1, __ATOMIC_RELEASE);
}

Result<void> DeviceRank::dispatch(const MoETokens& tokens, const MoERows& rows, DeviceRouting& routing,
                                  Halves halves, cuda::Stream stream) {
  HEADRACE_TRY_VOID(joined());
  headrace_moe_dispatch_v1 args{};
  args.struct_size = sizeof args;
  args.rank = &rank_;
  args.halves = static_cast<std::uint32_t>(halves);
  args.routing = routing.address();
  args.experts_bytes = tokens.experts_dtype == DType::int64 ? 8 : 4;
  if (halves != Halves::receive) {
    HEADRACE_TRY_VOID(check_tokens(tokens, routing));
    args.tokens = static_cast<std::uint64_t>(tokens.count), args.tokens_at = address(tokens.count_at);
    args.rows = address(tokens.rows), args.scales = scales_at(tokens.scales, scales_of(tokens));
    args.row_stride =
        static_cast<std::uint64_t>(stride_or(tokens.row_stride, given_row_bytes(config_, tokens.cast)));
    args.cast = static_cast<std::uint32_t>(tokens.cast);
    for (std::size_t i = 0; i < config_.payload_bytes.size(); ++i)
      args.payloads[i] = {address(tokens.payloads[i].rows),
                          stride_or(tokens.payloads[i].stride, config_.payload_bytes[i])};
    args.experts = address(tokens.experts), args.weights = address(tokens.weights);
    if (tokens.replicas != nullptr) args.replicas = replicas_at(*tokens.replicas);
    if (tokens.experts != nullptr) named_experts_ = experts_named_by(tokens);
  }
  if (halves != Halves::send) {
    HEADRACE_TRY_VOID(check_rows(rows));
    args.out_rows = address(rows.rows);
    args.out_scales = scales_at(rows.scales, scales_of(rows), rows.scale_expert_stride);
    for (std::size_t i = 0; i < config_.payload_bytes.size(); ++i)
      args.out_payloads[i] = address(rows.payloads[i]);
    args.out_counts = address(rows.counts), args.out_first_rows = address(rows.first_rows);
    args.out_experts = address(rows.experts), args.out_weights = address(rows.weights);
  }
  const gpu::ContextGuard current(family_.kernels().device());
  HEADRACE_TRY_VOID(launched(family_.launch<&headrace_moe_v1::dispatch>(args, stream), "dispatch"));
  if (halves != Halves::receive) routing.given = args.tokens, routing.filled = true;
  return {};
}

Result<void> DeviceRank::combine(const MoEResults& results, const MoESums& sums, DeviceRouting& routing,
                                 Halves halves, cuda::Stream stream) {
  HEADRACE_TRY_VOID(joined());
  HEADRACE_TRY_VOID(check_combine(results, sums, routing, halves));
  headrace_moe_combine_v1 args{};
  args.struct_size = sizeof args;
  args.rank = &rank_;
  args.halves = static_cast<std::uint32_t>(halves);
  args.weighted = results.weighted ? 1 : 0;
  args.in_window = results.in_window ? 1 : 0;
  args.routing = routing.address();
  args.results = address(results.rows), args.sums = address(sums.rows);
  args.result_stride = static_cast<std::uint64_t>(stride_or(results.row_stride, config_.combine_row_bytes()));
  args.sum_stride = static_cast<std::uint64_t>(stride_or(sums.row_stride, config_.combine_row_bytes()));
  for (std::size_t i = 0; i < 2; ++i) args.biases[i] = address(sums.biases[i]);
  args.accumulate = sums.accumulate ? 1 : 0;
  const gpu::ContextGuard current(family_.kernels().device());
  HEADRACE_TRY_VOID(launched(family_.launch<&headrace_moe_v1::combine>(args, stream), "combine"));
  if (halves != Halves::receive) routing.has_memory = false;
  return {};
}

Result<void> DeviceRank::combine_memory(MoEWindowRows* of_ranks, DeviceRouting& routing,
                                        cuda::Stream stream) {
  static_assert(sizeof(MoEWindowRows) == sizeof(headrace_moe_window_rows_v1));
  HEADRACE_TRY_VOID(joined());
  HEADRACE_TRY_VOID(has_dispatch(routing));
  HEADRACE_TRY_VOID(check_window_takes_sums(config_));
  if (of_ranks == nullptr)
    return make_error(Code::invalid_argument,
                      "no memory for the places is given, expected one for each of {} ranks", config_.ranks);
  HEADRACE_TRY_VOID(check_place("places", of_ranks, 0, alignof(MoEWindowRows)));
  const headrace_moe_combine_memory_v1 args{sizeof args, &rank_, routing.address(), address(of_ranks)};
  const gpu::ContextGuard current(family_.kernels().device());
  HEADRACE_TRY_VOID(
      launched(family_.launch<&headrace_moe_v1::combine_memory>(args, stream), "combine_memory"));
  routing.has_memory = true;
  return {};
}

Result<void> DeviceRank::joined() const {
  if (rank_.windows[0] != 0) return {};
  return make_error(Code::invalid_argument, "it has not joined the other ranks: call join first");
}

Result<void> DeviceRank::check_tokens(const MoETokens& tokens, const DeviceRouting& routing) const {
  if (tokens.count < 0 || tokens.count > config_.max_tokens)
    return make_error(Code::invalid_argument, "{} tokens are given, expected 0 to max_tokens = {}",
                      tokens.count, config_.max_tokens);
  const DType numbers = tokens.experts_dtype;
  if (numbers != DType::int64 && numbers != DType::int32 && numbers != DType::uint32)
    return make_error(Code::invalid_argument, "experts are {}, expected int64, int32 or uint32",
                      dtype_name(numbers));
  if (tokens.experts == nullptr && !routing.filled)
    return make_error(Code::invalid_argument,
                      "no experts are given, and the routing has none: dispatch with experts first");
  if (tokens.replicas != nullptr) HEADRACE_TRY_VOID(check_tables(*tokens.replicas, config_.experts));
  if (tokens.count == 0) return {};
  if (tokens.rows == nullptr)
    return make_error(Code::invalid_argument, "{} tokens are given, and no rows", tokens.count);
  HEADRACE_TRY_VOID(check_columns(config_, tokens));
  HEADRACE_TRY_VOID(check_place("rows", tokens.rows, tokens.row_stride, row_unit));
  return check_scale_places(tokens.scales, scales_of(tokens));
}

Result<void> DeviceRank::check_rows(const MoERows& rows) const {
  if (config_.output_rows() == 0) return {};
  HEADRACE_TRY_VOID(check_memory(config_, rows));
  HEADRACE_TRY_VOID(check_scale_places(rows.scales, scales_of(rows), rows.scale_expert_stride));
  return check_place("rows", rows.rows, 0, row_unit);
}

Result<void> DeviceRank::has_dispatch(const DeviceRouting& routing) {
  if (routing.filled) return {};
  return make_error(Code::invalid_argument, "the routing has no dispatch: dispatch with it first");
}

Result<void> DeviceRank::check_combine(const MoEResults& results, const MoESums& sums,
                                       const DeviceRouting& routing, Halves halves) const {
  HEADRACE_TRY_VOID(has_dispatch(routing));
  const bool sends = halves != Halves::receive;
  if (sends && results.in_window && !routing.has_memory)
    return make_error(
        Code::invalid_argument,
        "in_window is given, and combine_memory was not called for this combine: call it first");
  if (sends && !results.in_window) {
    if (results.rows == nullptr && config_.output_rows() != 0)
      return make_error(Code::invalid_argument, "no rows of results are given, expected {} rows of {} bytes",
                        config_.output_rows(), config_.combine_row_bytes());
    HEADRACE_TRY_VOID(check_stride("row_stride", results.row_stride, config_.combine_row_bytes()));
    HEADRACE_TRY_VOID(check_place("results", results.rows, results.row_stride, row_unit));
  }
  if (halves == Halves::send) return {};
  HEADRACE_TRY_VOID(check_row_count(sums.row_count, routing.given));
  if (sums.rows == nullptr && routing.given != 0)
    return make_error(Code::invalid_argument, "no memory for sums is given, expected {} rows of {} bytes",
                      routing.given, config_.combine_row_bytes());
  HEADRACE_TRY_VOID(check_stride("row_stride", sums.row_stride, config_.combine_row_bytes()));
  for (const void* const bias : sums.biases) HEADRACE_TRY_VOID(check_place("biases", bias, 0, row_unit));
  return check_place("sums", sums.rows, sums.row_stride, row_unit);
}

Result<void> DeviceRank::launched(cuda::Outcome outcome, const char* operation) const {
  if (outcome == cuda::Outcome::success) return {};
  const gpu::Device& device = family_.kernels().device();
  return cuda::driver_error(device.driver(), outcome, "launch {} on GPU {}", operation, device.ordinal());
}

headrace_moe_status_v1& DeviceRank::status() const {
  return *reinterpret_cast<headrace_moe_status_v1*>(words_.bytes().data() + status_at);
}

Result<void> DeviceRank::check() {
  headrace_moe_status_v1& seen = status();
  const std::uint64_t reason = __atomic_load_n(&seen.reason, __ATOMIC_ACQUIRE);
  if (reason == 0) return {};
  const Code code = code_of(reason);
  const MoEFailure failure{code,
                           static_cast<int>(seen.waiter),
                           static_cast<int>(seen.peer),
                           seen.operation == HEADRACE_MOE_DISPATCH ? "dispatch" : "combine",
                           seen.number,
                           name_of_awaited(seen.awaited),
                           seen.expected,
                           seen.seen};
  __atomic_store_n(&seen.reason, 0, __ATOMIC_RELEASE);  // the next launch may report
  if (reason == HEADRACE_MOE_EXHAUSTED)
    return make_error(
        code, "rank {} got {} rows{} in dispatch {}, and row_budget is {}: the rows beyond it were dropped",
        failure.waiter, failure.seen, config_.layout == MoELayout::batched ? " for one expert" : "",
        failure.number, failure.expected);
  if (reason == HEADRACE_MOE_WRONG_EXPERT)
    return make_error(code, "token {} names expert {} as its entry {}: expected -1 to {}. It went nowhere",
                      failure.expected / static_cast<std::uint64_t>(config_.top_k),
                      static_cast<std::int64_t>(failure.seen),
                      failure.expected % static_cast<std::uint64_t>(config_.top_k), named_experts_ - 1);
  if (reason == HEADRACE_MOE_WRONG_PLACE)
    return make_error(
        code,
        "token {} names expert {} as its entry {}, whose places in replicas cannot be: expected "
        "1 to {} of them, each 0 to {}. It went nowhere",
        failure.expected / static_cast<std::uint64_t>(config_.top_k), failure.seen,
        failure.expected % static_cast<std::uint64_t>(config_.top_k), config_.experts, config_.experts - 1);
  if (reason == HEADRACE_MOE_ABORTED)
    return make_error(code, "rank {} was aborted as it waited for {} of rank {} in {} {}", failure.waiter,
                      failure.awaited, failure.peer, failure.operation, failure.number);
  failure_ = failure;
  return make_error(code, "{}", failure.text());
}

}  // namespace headrace::moe
