// SPDX-License-Identifier: Apache-2.0
#include "moe/config.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"
#include "moe/cast.hpp"
#include "moe/nodes.hpp"
#include "moe/relay_layout.hpp"
#include "moe/spread.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace headrace {
namespace {

constexpr std::int64_t row_unit = 16;
constexpr std::int64_t most_row_bytes = std::int64_t{1} << 24;
constexpr std::int64_t most_scale_bytes = std::int64_t{1} << 20;
constexpr std::int64_t most_alignment = 65536;
constexpr std::int64_t most_rows = std::int64_t{1} << 31;
constexpr std::int64_t most_blocks = 128;

Result<void> in_range(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return {};
  return make_error(Code::invalid_argument, "{} is {}, expected {} to {}", field, value, least, most);
}

Result<void> check_ranks(const MoEConfig& config) {
  HEADRACE_TRY_VOID(in_range("ranks", config.ranks, 1, moe_most_ranks));
  HEADRACE_TRY_VOID(in_range("rank", config.rank, 0, config.ranks - 1));
  HEADRACE_TRY_VOID(in_range("group_size", config.group_size, 1, config.ranks));
  HEADRACE_TRY_VOID(in_range("ranks_per_node", config.ranks_per_node, 0, config.ranks));
  if (config.ranks % config.group_size == 0) return {};
  return make_error(Code::invalid_argument,
                    "group_size is {} and ranks is {}: give a group_size that divides ranks",
                    config.group_size, config.ranks);
}

Result<void> check_experts(const MoEConfig& config) {
  HEADRACE_TRY_VOID(in_range("experts", config.experts, 1, moe_most_experts));
  HEADRACE_TRY_VOID(in_range("top_k", config.top_k, 1, moe_most_top_k));
  if (config.top_k > config.experts)
    return make_error(Code::invalid_argument, "top_k is {}, expected at most experts = {}", config.top_k,
                      config.experts);
  const auto& spread = config.experts_of_ranks;
  if (spread.empty()) return {};
  if (spread.size() != static_cast<std::size_t>(config.ranks))
    return make_error(Code::invalid_argument,
                      "experts_of_ranks has {} numbers, expected one for each of {} ranks", spread.size(),
                      config.ranks);
  for (std::size_t rank = 0; rank < spread.size(); ++rank)
    HEADRACE_TRY_VOID(in_range(fmt::format("experts_of_ranks[{}]", rank), spread[rank], 0, config.experts));
  const int sum = std::accumulate(spread.begin(), spread.end(), 0);
  if (sum == config.experts) return {};
  return make_error(Code::invalid_argument, "the sum of experts_of_ranks is {}, expected experts = {}", sum,
                    config.experts);
}

Result<void> check_row(std::string_view field, std::int64_t hidden, DType dtype) {
  const std::int64_t bytes = hidden * static_cast<std::int64_t>(element_bytes(dtype));
  if (bytes % row_unit == 0 && bytes <= most_row_bytes) return {};
  return make_error(Code::invalid_argument,
                    "hidden is {}, a row of {} has {} bytes ({}): expected a multiple of {}, at most {}",
                    hidden, dtype_name(dtype), bytes, field, row_unit, most_row_bytes);
}

Result<void> check_rows(const MoEConfig& config) {
  HEADRACE_TRY_VOID(in_range("hidden", config.hidden, 1, most_row_bytes));
  const DType sum = config.combine_dtype;
  if (sum != DType::float32 && sum != DType::float16 && sum != DType::bfloat16)
    return make_error(Code::invalid_argument, "combine_dtype is {}, expected float32, float16 or bfloat16",
                      dtype_name(sum));
  HEADRACE_TRY_VOID(check_row("dtype", config.hidden, config.dtype));
  HEADRACE_TRY_VOID(check_row("combine_dtype", config.hidden, sum));
  if (config.float8_combine && config.hidden % row_unit != 0)
    return make_error(Code::invalid_argument, "hidden is {}, expected a multiple of {} for float8_combine",
                      config.hidden, row_unit);
  HEADRACE_TRY_VOID(in_range("scale_bytes", config.scale_bytes, 0, most_scale_bytes));
  if (config.scale_bytes % 4 == 0) return {};
  return make_error(Code::invalid_argument, "scale_bytes is {}, expected a multiple of 4",
                    config.scale_bytes);
}

Result<void> check_payloads(const MoEConfig& config) {
  const auto& payloads = config.payload_bytes;
  HEADRACE_TRY_VOID(in_range("the number of payload_bytes", std::ssize(payloads), 0, moe_most_payloads));
  for (std::size_t i = 0; i < payloads.size(); ++i)
    HEADRACE_TRY_VOID(in_range(fmt::format("payload_bytes[{}]", i), payloads[i], 1, most_scale_bytes));
  return {};
}

Result<void> check_output(const MoEConfig& config) {
  HEADRACE_TRY_VOID(in_range("max_tokens", config.max_tokens, 1, moe_most_tokens));
  HEADRACE_TRY_VOID(in_range("layout", static_cast<std::int64_t>(config.layout), 0, 2));
  HEADRACE_TRY_VOID(in_range("row_alignment", config.row_alignment, 1, most_alignment));
  HEADRACE_TRY_VOID(in_range("row_budget", config.row_budget, 0, most_rows));
  if (config.layout != MoELayout::by_expert && (config.row_alignment != 1 || config.zero_padding))
    return make_error(Code::invalid_argument,
                      "layout is {}, which has no padding: leave row_alignment at 1 and zero_padding off",
                      moe_layout_name(config.layout));
  HEADRACE_TRY_VOID(in_range("rows of the output", config.output_rows(), 0, most_rows));
  return in_range("wait_limit (in nanoseconds)", config.wait_limit.count(), 1,
                  std::chrono::nanoseconds(std::chrono::hours(24)).count());
}

Result<void> check_device(const MoEConfig& config) {
  if (config.device < -1)
    return make_error(Code::invalid_argument, "device is {}, expected the number of a GPU, or -1",
                      config.device);
  HEADRACE_TRY_VOID(in_range("blocks", config.blocks, 0, most_blocks));
  if (config.device >= 0 && moe::Nodes::of(config).count() != 1)
    return make_error(Code::not_supported,
                      "device is {} and ranks_per_node is {}: ranks on GPUs are on one node, so leave "
                      "ranks_per_node at 0, or device at -1",
                      config.device, config.ranks_per_node);
  if (config.device >= 0 || config.blocks == 0) return {};
  return make_error(
      Code::invalid_argument,
      "blocks is {}, and device is -1: give the device whose blocks they are, or leave blocks at 0",
      config.blocks);
}

Result<void> check_name(const MoEConfig& config) {
  if (!config.name.empty() && config.name.size() <= 200 && !has_control_character(config.name)) return {};
  return make_error(Code::invalid_argument, "name is {}, expected 1 to 200 bytes without control characters",
                    name_text(config.name));
}

/// The most rows of one expert, if no token names it twice.
std::int64_t tokens_of_all(const MoEConfig& config) { return config.groups() * config.max_tokens; }

}  // namespace

std::string_view moe_layout_name(MoELayout layout) noexcept {
  switch (layout) {
    case MoELayout::by_expert:
      return "by_expert";
    case MoELayout::batched:
      return "batched";
    case MoELayout::by_rank:
      return "by_rank";
  }
  return "unknown";
}

std::string_view moe_cast_name(MoECast cast) noexcept {
  switch (cast) {
    case MoECast::none:
      return "none";
    case MoECast::float32:
      return "float32";
    case MoECast::ue8m0:
      return "ue8m0";
  }
  return "unknown";
}

std::string_view moe_choice_name(MoEChoice choice) noexcept {
  switch (choice) {
    case MoEChoice::in_turn:
      return "in_turn";
    case MoEChoice::least_loaded:
      return "least_loaded";
    case MoEChoice::by_share:
      return "by_share";
  }
  return "unknown";
}

Result<void> MoEConfig::check() const {
  HEADRACE_TRY_VOID(check_name(*this));
  HEADRACE_TRY_VOID(check_ranks(*this));
  HEADRACE_TRY_VOID(check_experts(*this));
  HEADRACE_TRY_VOID(check_rows(*this));
  HEADRACE_TRY_VOID(check_payloads(*this));
  HEADRACE_TRY_VOID(check_device(*this));
  return check_output(*this);
}

Result<std::size_t> MoEConfig::window_bytes() const {
  HEADRACE_TRY_VOID(check());
  return static_cast<std::size_t>(
      moe::RelayLayout::of(moe::Nodes::of(*this), moe::window_layout(*this)).bytes());
}

int MoEConfig::first_expert(int of_rank) const {
  if (experts_of_ranks.empty()) {
    return static_cast<int>(moe::first_of_even_spread(static_cast<std::uint32_t>(experts),
                                                      static_cast<std::uint32_t>(ranks),
                                                      static_cast<std::uint32_t>(of_rank)));
  }
  return std::accumulate(experts_of_ranks.begin(), experts_of_ranks.begin() + of_rank, 0);
}

std::int64_t MoEConfig::rows_of_expert() const { return row_budget != 0 ? row_budget : tokens_of_all(*this); }

std::int64_t MoEConfig::output_rows() const {
  if (layout == MoELayout::batched) return local_experts() * rows_of_expert();
  if (row_budget != 0) return row_budget;
  if (layout == MoELayout::by_rank) return tokens_of_all(*this);
  const std::int64_t rows = tokens_of_all(*this) * std::min(top_k, local_experts());
  return static_cast<std::int64_t>(
      moe::round_up(static_cast<std::uint64_t>(rows + local_experts() * (row_alignment - 1)),
                    static_cast<std::uint64_t>(row_alignment)));
}

namespace moe {
namespace {

/// The value of a line "field value".
std::string_view value_of(std::string_view line) {
  const std::size_t space = line.find(' ');
  return space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
}

std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

}  // namespace

WindowLayout window_layout(const MoEConfig& config) {
  int most_experts = 0;
  for (int rank = 0; rank < config.ranks; ++rank)
    most_experts = std::max(most_experts, config.local_experts(rank));
  WindowLayout layout{};
  layout.ranks = static_cast<std::uint32_t>(config.ranks);
  layout.group_size = static_cast<std::uint32_t>(config.group_size);
  layout.slots = static_cast<std::uint32_t>(
      tokens_of_member(static_cast<std::uint64_t>(config.max_tokens), layout.group_size, 0).end);
  layout.slots = static_cast<std::uint32_t>(round_up(layout.slots, chunk_slots));
  layout.experts = static_cast<std::uint32_t>(most_experts);
  layout.record = {static_cast<std::uint32_t>(config.top_k), static_cast<std::uint64_t>(config.row_bytes()),
                   static_cast<std::uint64_t>(config.scale_bytes)};
  std::ranges::copy(config.payload_bytes, layout.record.payload_bytes);
  layout.partial_bytes = config.float8_combine
                             ? float8_partial_bytes(static_cast<std::uint64_t>(config.hidden))
                             : static_cast<std::uint64_t>(config.combine_row_bytes());
  return layout;
}

std::string config_text(const MoEConfig& config) {
  std::string spread = "even";
  if (!config.experts_of_ranks.empty()) spread = fmt::format("{}", fmt::join(config.experts_of_ranks, ","));
  return fmt::format(
      "ranks {}\ngroup_size {}\nranks_per_node {}\nexperts {}\nexperts_of_ranks {}\ntop_k {}\nhidden "
      "{}\ndtype {}\nscale_bytes "
      "{}\npayload_bytes [{}]\ncombine_dtype {}\nfloat8_combine {}\nmax_tokens {}\nlayout {}\nrow_alignment "
      "{}\nzero_padding {}\ndeterministic {}\nmemory {}\n",
      config.ranks, config.group_size, config.ranks_per_node, config.experts, spread, config.top_k,
      config.hidden, dtype_name(config.dtype), config.scale_bytes, fmt::join(config.payload_bytes, ","),
      dtype_name(config.combine_dtype), config.float8_combine, config.max_tokens,
      moe_layout_name(config.layout), config.row_alignment, config.zero_padding, config.deterministic,
      config.device < 0 ? "of the host" : "of a GPU");
}

std::string window_text(const MoEConfig& config, std::string_view gpu) {
  std::string text = fmt::format("{}rank {}\n", config_text(config), config.rank);
  if (!gpu.empty()) text += fmt::format("gpu {}\n", gpu);
  return text;
}

std::string_view gpu_of_window(std::string_view theirs) {
  constexpr std::string_view before = "\ngpu ";
  const std::size_t at = theirs.rfind(before);
  if (at == std::string_view::npos) return {};
  theirs.remove_prefix(at + before.size());
  return take_line(theirs);
}

std::size_t region_bytes(const MoEConfig& config) {
  const WindowLayout layout = window_layout(config);
  return config.device < 0 ? RelayLayout::of(Nodes::of(config), layout).bytes()
                           : layout.words_at(layout.ranks);
}

Result<void> check_window_rank(int peer, std::string_view theirs) {
  constexpr std::string_view before = "\nrank ";
  const std::size_t at = theirs.rfind(before);
  if (at == std::string_view::npos)
    return make_error(Code::corrupt, "rank {} has no configuration that can be read: rank is missing", peer);
  theirs.remove_prefix(at + before.size());
  const std::string_view rank = take_line(theirs);
  if (rank == fmt::format("{}", peer)) return {};
  return make_error(
      Code::invalid_argument,
      "it is rank {}, and is given as the agent of rank {}: give the agents in the order of the "
      "ranks, the same list on all ranks",
      rank, peer);
}

std::uint64_t number_of_list(std::span<const std::string> agents) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&hash](std::uint64_t number) { hash = (hash ^ number) * 0x100000001b3; };
  for (const std::string& agent : agents) {
    add(agent.size());
    for (const char letter : agent) add(static_cast<unsigned char>(letter));
  }
  return hash >> 11 | 1;  // 53 bits, which travel between nodes
}

Result<void> check_window_takes_sums(const MoEConfig& config) {
  if (config.layout == MoELayout::by_rank && !config.float8_combine) return {};
  return make_error(
      Code::not_supported,
      "layout is {} and float8_combine is {}: the window takes sums of a token's experts, which "
      "layout by_rank without float8_combine has",
      moe_layout_name(config.layout), config.float8_combine);
}

Result<void> compare_configs(int rank, std::string_view ours, int peer, std::string_view theirs) {
  while (!ours.empty()) {
    const std::string_view mine = take_line(ours), other = take_line(theirs);
    if (mine == other) continue;
    const std::string_view field = mine.substr(0, mine.find(' '));
    if (other.substr(0, other.find(' ')) != field)
      return make_error(Code::corrupt, "rank {} has no configuration that can be read: {} is missing", peer,
                        field);
    return make_error(Code::invalid_argument,
                      "rank {} has {} {}, rank {} has {}: give all ranks the same configuration", rank, field,
                      value_of(mine), peer, value_of(other));
  }
  return {};
}

}  // namespace moe
}  // namespace headrace
