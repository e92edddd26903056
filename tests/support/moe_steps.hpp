// SPDX-License-Identifier: Apache-2.0
// Ranks whose dispatches and combines are launches of the kernel family moe, on any machine that runs them;
// and random steps, whose answers are compared with the reference. No test framework: bench/gpu uses it, too.
#pragma once

#include "moe/cast.hpp"
#include "moe/replicas.hpp"
#include "support/moe_reference.hpp"

#include <headrace/plugin/kernels/moe_v1.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace headrace::moe_steps {

using moe_reference::Bytes;
using moe_reference::Dispatched;
using moe_reference::Mask;
using moe_reference::Tokens;
using Random = std::mt19937_64;

inline std::int64_t below(Random& random, std::int64_t end) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
}

/// What runs launches. An address is the same for the host and for kernels.
class Machine {
 public:
  virtual ~Machine() = default;
  /// Zeros, at a multiple of 128, until the machine ends. `is_read`: the host reads and writes it.
  virtual std::byte* memory(std::size_t bytes, bool is_read) = 0;
  virtual const headrace_moe_v1& table() = 0;
  /// Returns when it has been queued. Launches of a rank are in order, those of several at the same time.
  virtual void dispatch(int rank, const headrace_moe_dispatch_v1& args) = 0;
  virtual void combine(int rank, const headrace_moe_combine_v1& args) = 0;
  virtual void combine_memory(int rank, const headrace_moe_combine_memory_v1& args) = 0;
  virtual void wait(int rank) = 0;
  /// Between memory that the host reads and what it does not.
  virtual void copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
};

/// How tokens choose their experts.
enum class Choice : std::uint8_t { uniform, zipf, one, some_none, twice };
inline constexpr int choices = 5;

inline std::int64_t choose(Random& random, Choice choice, int experts) {
  if (choice == Choice::one) return experts / 2;
  if (choice == Choice::zipf) {  // the n-th expert with a chance of about 1 / n
    const double u = std::uniform_real_distribution<>(0, 1)(random);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::pow(static_cast<double>(experts), u)) - 1,
                                    0, experts - 1);
  }
  if (choice == Choice::some_none && below(random, experts + 3) < 3) return -1;
  return below(random, experts);
}

inline Bytes random_bytes(Random& random, std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}
/// Numbers of about 1.
inline Bytes random_rows(Random& random, DType dtype, std::int64_t elements) {
  Bytes rows(static_cast<std::size_t>(elements) * element_bytes(dtype));
  std::uniform_real_distribution<float> number(-1, 1);
  for (std::size_t at = 0; at < rows.size(); at += element_bytes(dtype))
    moe_reference::store(dtype, rows.data() + at, number(random));
  return rows;
}
inline void choose_experts(Random& random, const MoEConfig& config, Choice choice, Tokens& tokens) {
  tokens.experts.clear(), tokens.weights.clear();
  for (std::int64_t token = 0; token < tokens.count; ++token)
    for (int k = 0; k < config.top_k; ++k) {
      std::int64_t expert = choose(random, choice, config.experts);
      const auto begin = tokens.experts.end() - k;
      if (choice != Choice::twice && choice != Choice::one)  // a token names no expert twice
        while (expert >= 0 && std::find(begin, tokens.experts.end(), expert) != tokens.experts.end())
          expert = (expert + 1) % config.experts;
      tokens.experts.push_back(expert);
      tokens.weights.push_back(std::uniform_real_distribution<float>(0, 1)(random));
    }
}
inline Tokens random_tokens(Random& random, const MoEConfig& config, std::int64_t count, Choice choice) {
  Tokens tokens;
  tokens.count = count;
  tokens.rows = random_bytes(random, count * config.row_bytes());
  tokens.scales = random_bytes(random, count * config.scale_bytes);
  for (const std::int64_t bytes : config.payload_bytes)
    tokens.payloads.push_back(random_bytes(random, count * bytes));
  choose_experts(random, config, choice, tokens);
  return tokens;
}

/// A cast that the configuration allows, or none.
inline MoECast possible_cast(Random& random, const MoEConfig& config) {
  const auto hidden = static_cast<std::uint64_t>(config.hidden),
             bytes = static_cast<std::uint64_t>(config.scale_bytes);
  if (config.dtype != DType::float8_e4m3fn || below(random, 4) == 0) return MoECast::none;
  if (bytes == moe::float_scale_bytes(hidden)) return MoECast::float32;
  return bytes == moe::ue8m0_scale_bytes(hidden) ? MoECast::ue8m0 : MoECast::none;
}

/// `most_hidden`: in units of 16 elements.
inline MoEConfig random_config(Random& random, int most_ranks, std::int64_t most_tokens,
                               std::int64_t most_hidden = 8) {
  MoEConfig config;
  config.ranks = 1 + static_cast<int>(below(random, most_ranks));
  for (const int size : {8, 4, 3, 2})
    if (config.ranks % size == 0 && below(random, 3) == 0) config.group_size = size;
  config.experts = 1 + static_cast<int>(below(random, 40));
  config.top_k = 1 + static_cast<int>(below(random, std::min(config.experts, 9)));
  constexpr DType types[] = {DType::bfloat16, DType::float16, DType::float32, DType::float8_e4m3fn};
  config.dtype = types[below(random, 4)];
  config.combine_dtype = types[below(random, 3)];
  config.hidden = 16 * (1 + below(random, below(random, 2) == 0 ? 4 : most_hidden));
  if (config.dtype == DType::float8_e4m3fn) config.scale_bytes = 4 * (1 + below(random, 50));
  if (below(random, 2) == 0) {  // so that rows can be cast
    const auto hidden = static_cast<std::uint64_t>(config.hidden);
    config.dtype = DType::float8_e4m3fn;
    config.scale_bytes = static_cast<std::int64_t>(below(random, 2) == 0 ? moe::float_scale_bytes(hidden)
                                                                         : moe::ue8m0_scale_bytes(hidden));
  }
  if (below(random, 3) == 0)
    for (std::int64_t i = 1 + below(random, moe_most_payloads); i != 0; --i)
      config.payload_bytes.push_back(below(random, 3) == 0 ? 16 * (1 + below(random, 80))
                                                           : 1 + below(random, 40));
  config.float8_combine = below(random, 4) == 0;
  config.max_tokens = 1 + below(random, most_tokens);
  config.layout = static_cast<MoELayout>(below(random, 3));
  if (config.layout == MoELayout::by_expert) {
    config.row_alignment = std::int64_t{1} << below(random, 6);
    config.zero_padding = below(random, 2) == 0;
  }
  if (below(random, 5) == 0) config.row_budget = 1 + below(random, 100);
  if (below(random, 2) == 0) {  // unevenly: some ranks have none
    config.experts_of_ranks.assign(static_cast<std::size_t>(config.ranks), 0);
    for (int i = 0; i < config.experts; ++i)
      ++config.experts_of_ranks[static_cast<std::size_t>(below(random, config.ranks))];
  }
  return config;
}

/// Where a caller's rows and what is beside them lie.
struct Placement {
  std::int64_t gap = 0;         ///< bytes between rows of tokens, and of payloads; rows: 16 times that
  std::int64_t unit_bytes = 0;  ///< of scales by column; 0: those of a row lie side by side

  /// Of `rows` rows whose scales have `bytes` each.
  [[nodiscard]] headrace_moe_scales_v1 scales(const std::byte* at, std::int64_t rows,
                                              std::int64_t bytes) const {
    const auto address = reinterpret_cast<std::uint64_t>(at);
    if (unit_bytes == 0) return {address, bytes, 4, 0, 4, 0};
    return {address,
            unit_bytes,
            unit_bytes * std::max<std::int64_t>(rows, 1),
            0,
            static_cast<std::uint32_t>(unit_bytes),
            0};
  }
  /// Calls each(offset in scales by row, offset as they lie, bytes) for the scales of `rows` rows.
  template <class Each>
  void each_scale(std::int64_t rows, std::int64_t bytes, const Each& each) const {
    const std::int64_t unit = unit_bytes == 0 ? 4 : unit_bytes;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t at = 0; at < bytes; at += unit)
        each(row * bytes + at, unit_bytes == 0 ? row * bytes + at : row * unit + at * rows, unit);
  }
};

/// The places of the experts that tokens name. The same for all ranks, and no larger than `most`.
struct ReplicaTable {
  int experts = 0;  ///< 0: tokens name places
  MoEChoice choice = MoEChoice::in_turn;
  std::vector<std::int32_t> first{0}, places;
  std::vector<std::int64_t> loads, until, before;

  static constexpr std::int64_t most_places(const MoEConfig& config) {
    return std::int64_t{config.experts} * 3;
  }

  static ReplicaTable random_one(Random& random, const MoEConfig& config) {
    ReplicaTable made;
    made.experts = config.top_k + static_cast<int>(below(random, config.experts - config.top_k + 1));
    made.choice = static_cast<MoEChoice>(below(random, 3));
    for (int expert = 0; expert < made.experts; ++expert) {
      std::int64_t until = 0;
      for (std::int64_t i = 1 + below(random, std::min(config.experts, 3)); i != 0; --i) {
        made.places.push_back(static_cast<std::int32_t>(below(random, config.experts)));
        made.until.push_back(until += below(random, 5));
      }
      made.first.push_back(static_cast<std::int32_t>(made.places.size()));
      made.before.push_back(below(random, 9));
    }
    for (int rank = 0; rank < config.ranks; ++rank) made.loads.push_back(below(random, 9));
    return made;
  }
  [[nodiscard]] MoEReplicas argument() const {
    return {experts, first.data(), places.data(), choice, loads.data(), until.data(), before.data()};
  }
  /// Tokens of a rank, whose experts become places.
  [[nodiscard]] Tokens placed(const MoEConfig& config, Tokens tokens, int rank, Mask active) const {
    if (experts == 0) return tokens;
    const MoEReplicas replicas = argument();
    const moe::Spread spread = moe::spread_of(config);
    moe::ReplicaChooser chooser(config);
    chooser.begin(replicas, spread, static_cast<std::uint32_t>(rank), active);
    for (std::int64_t& expert : tokens.experts)
      if (expert >= 0) expert = chooser.place_of(static_cast<std::uint32_t>(expert));
    return tokens;
  }
};

/// What all ranks give, and what they must get.
struct Step {
  Step(Random& random, const MoEConfig& config, Choice choice, Mask active = moe_reference::all_ranks)
      : cast(possible_cast(random, config)) {
    if (below(random, 3) == 0) replicas = ReplicaTable::random_one(random, config);
    for (int rank = 0; rank < config.ranks; ++rank) {
      inputs.push_back(rank % config.group_size == 0 ? tokens_of_group(random, config, choice)
                                                     : inputs.back());
      const MoEConfig its = moe_reference::of_rank(config, rank);
      results.push_back(random_rows(random, config.combine_dtype, its.output_rows() * config.hidden));
    }
    options.weighted = below(random, 4) != 0;
    const auto rows = [&](const Tokens& tokens) {
      return random_rows(random, config.combine_dtype, tokens.count * config.hidden);
    };
    if (below(random, 3) == 0)
      for (const Tokens& tokens : inputs) options.biases.push_back({rows(tokens), rows(tokens)});
    if (below(random, 3) == 0)
      for (const Tokens& tokens : inputs) options.old.push_back(rows(tokens));
    are_numbers_small = below(random, 2) == 0;
    is_in_window = config.layout == MoELayout::by_rank && !config.float8_combine && below(random, 2) == 0;
    placement.gap = below(random, 2) * (1 + below(random, 9));
    placement.unit_bytes =
        below(random, 2) * (std::int64_t{1} << below(random, config.scale_bytes % 8 == 0 ? 4 : 3));
    expect(config, active);
  }
  Tokens tokens_of_group(Random& random, const MoEConfig& config, Choice choice) const {
    const bool is_empty = below(random, 6) == 0;
    MoEConfig named = config;
    if (replicas.experts != 0) named.experts = replicas.experts;
    Tokens tokens = random_tokens(random, named, is_empty ? 0 : below(random, config.max_tokens + 1), choice);
    if (cast != MoECast::none)
      tokens.rows = random_rows(random, DType::bfloat16, tokens.count * config.hidden);
    return tokens;
  }
  /// As launches of small_config are recorded, whose arguments stay. What tokens name are places then.
  void make_plain(const MoEConfig& config, Mask active = moe_reference::all_ranks) {
    options = {}, placement = {}, replicas = {}, are_numbers_small = true, is_in_window = false;
    expect(config, active);
  }
  void expect(const MoEConfig& config, Mask active) {
    std::vector<Tokens> travelling;
    for (int rank = 0; rank < config.ranks; ++rank) {
      travelling.push_back(replicas.placed(config, inputs[static_cast<std::size_t>(rank)], rank, active));
      if (cast != MoECast::none)
        travelling.back() = moe_reference::cast_tokens(config, travelling.back(), cast);
    }
    expected = moe_reference::dispatch(config, travelling, active);
    sums = moe_reference::combine(config, travelling, expected, results, options, active);
  }

  MoECast cast;
  ReplicaTable replicas;
  std::vector<Tokens> inputs;
  std::vector<Bytes> results;
  moe_reference::CombineOptions options;
  Placement placement;
  bool are_numbers_small = false;  ///< experts are given as int32
  bool is_in_window = false;       ///< experts write their results into windows
  bool uses_routing_again = false, gives_weights = true;
  std::vector<Dispatched> expected;
  std::vector<Bytes> sums;
};

/// All ranks of a configuration on a machine. A rank has memory for one step, which stays where it is.
class Ranks {
 public:
  Ranks(Machine& machine, const MoEConfig& config, std::uint32_t blocks, std::int64_t timeout_ns)
      : machine_(machine), config_(config) {
    for (int rank = 0; rank < config.ranks; ++rank) ranks_.push_back(rank_of(rank, blocks, timeout_ns));
    for (int rank = 0; rank < config.ranks; ++rank) {
      const headrace_moe_rank_v1& it = ranks_[at(rank)];
      windows_.push_back(machine.memory(machine.table().window_bytes(&it), false));
    }
    for (int rank = 0; rank < config.ranks; ++rank) open(rank);
  }

  [[nodiscard]] const MoEConfig& config() const { return config_; }
  [[nodiscard]] headrace_moe_rank_v1& operator[](int rank) { return ranks_[at(rank)]; }
  [[nodiscard]] headrace_moe_status_v1& status(int rank) {
    return *reinterpret_cast<headrace_moe_status_v1*>(memory_[at(rank)].words + 64);
  }
  void abort(int rank) {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(memory_[at(rank)].words), 1, __ATOMIC_RELEASE);
  }
  void set_active(int rank, Mask mask) {
    const Mask all = config_.ranks == 64 ? ~Mask{0} : (Mask{1} << config_.ranks) - 1;
    *reinterpret_cast<Mask*>(memory_[at(rank)].words + 128) = mask & all;
  }

  /// Puts what a rank gives into its memory, and other bytes into what it gets.
  void give(const Step& step, int rank) {
    const Memory& to = memory_[at(rank)];
    const Tokens& tokens = step.inputs[at(rank)];
    copy(tokens.rows, to.rows, given_row_bytes(step), row_stride(step));
    step.placement.each_scale(tokens.count, config_.scale_bytes, [&](auto by_row, auto placed, auto bytes) {
      std::memcpy(to.scales + placed, tokens.scales.data() + by_row, static_cast<std::size_t>(bytes));
    });
    for (std::size_t i = 0; i < tokens.payloads.size(); ++i)
      copy(tokens.payloads[i], to.payloads[i], config_.payload_bytes[i],
           config_.payload_bytes[i] + step.placement.gap);
    for (std::size_t i = 0; i < tokens.experts.size(); ++i) {
      reinterpret_cast<std::int64_t*>(to.experts)[i] = tokens.experts[i];
      reinterpret_cast<std::int32_t*>(to.small_experts)[i] = static_cast<std::int32_t>(tokens.experts[i]);
    }
    std::ranges::copy(tokens.weights, reinterpret_cast<float*>(to.weights));
    copy(step.replicas, to);
    *reinterpret_cast<std::int32_t*>(to.words + 192) = static_cast<std::int32_t>(tokens.count);
    const MoEConfig its = moe_reference::of_rank(config_, rank);
    std::fill_n(to.out_rows, its.output_rows() * its.row_bytes(), Dispatched::untouched);
    std::fill_n(to.out_scales, its.output_rows() * its.scale_bytes, Dispatched::untouched);
    for (std::size_t i = 0; i < tokens.payloads.size(); ++i)
      std::fill_n(to.out_payloads[i], its.output_rows() * its.payload_bytes[i], Dispatched::untouched);
    std::fill_n(reinterpret_cast<std::int32_t*>(to.out_experts), its.output_rows() * its.top_k, -1);
    std::fill_n(to.out_weights, its.output_rows() * its.top_k * 4, std::byte{0});
    copy(step.results[at(rank)], to.results);
    if (!step.options.old.empty()) copy(step.options.old[at(rank)], to.sums);
    if (step.options.biases.empty()) return;
    for (std::size_t i = 0; i < 2; ++i) copy(step.options.biases[at(rank)][i], to.biases[i]);
  }

  /// `tokens`: what the host says; the GPU reads the right number from memory.
  void dispatch(const Step& step, int rank, std::uint32_t halves, int routing = 0) {
    const Memory& its = memory_[at(rank)];
    headrace_moe_dispatch_v1 args{};
    args.struct_size = sizeof args;
    args.rank = &ranks_[at(rank)];
    args.halves = halves;
    args.experts_bytes = step.are_numbers_small ? 4 : 8;
    args.cast = static_cast<std::uint32_t>(step.cast);
    args.routing = address(its.routings[routing]);
    args.tokens = static_cast<std::uint64_t>(config_.max_tokens);
    args.tokens_at = address(its.words + 192);
    args.rows = address(its.rows), args.row_stride = static_cast<std::uint64_t>(row_stride(step));
    args.scales = step.placement.scales(its.scales, step.inputs[at(rank)].count, config_.scale_bytes);
    const MoEConfig config = moe_reference::of_rank(config_, rank);
    args.out_scales = step.placement.scales(its.out_scales, placed_rows(config), config_.scale_bytes);
    if (config.layout == MoELayout::batched)
      args.out_scales.expert_stride = config.rows_of_expert() * config_.scale_bytes;
    for (std::size_t i = 0; i < config_.payload_bytes.size(); ++i) {
      args.payloads[i] = {address(its.payloads[i]), config_.payload_bytes[i] + step.placement.gap};
      args.out_payloads[i] = address(its.out_payloads[i]);
    }
    args.experts = address(step.are_numbers_small ? its.small_experts : its.experts);
    args.weights = step.gives_weights ? address(its.weights) : 0;
    if (step.uses_routing_again) args.experts = 0;
    if (step.replicas.experts != 0)
      args.replicas = {static_cast<std::uint32_t>(step.replicas.experts),
                       static_cast<std::uint32_t>(step.replicas.choice),
                       address(its.first_places),
                       address(its.places),
                       address(its.loads),
                       address(its.until),
                       address(its.before)};
    args.out_rows = address(its.out_rows);
    args.out_counts = address(its.out_counts), args.out_first_rows = address(its.out_first_rows);
    args.out_experts = address(its.out_experts), args.out_weights = address(its.out_weights);
    machine_.dispatch(rank, args);
  }
  /// Asks where the results of a rank go.
  void combine_memory(int rank) {
    const Memory& its = memory_[at(rank)];
    const headrace_moe_combine_memory_v1 args{sizeof args, &ranks_[at(rank)], address(its.routings[0]),
                                              address(its.window_rows)};
    machine_.combine_memory(rank, args);
  }
  /// As its experts do, behind combine_memory.
  void write_to_windows(const Step& step, int rank) {
    const auto* const to =
        reinterpret_cast<const headrace_moe_window_rows_v1*>(memory_[at(rank)].window_rows);
    const auto row_bytes = static_cast<std::size_t>(config_.combine_row_bytes());
    const std::vector<std::int64_t>& firsts = step.expected[at(rank)].first_rows;
    for (std::size_t source = 0; source < at(config_.ranks); ++source)
      if (to[source].rows != 0)
        machine_.copy(reinterpret_cast<void*>(to[source].rows),
                      step.results[at(rank)].data() + static_cast<std::size_t>(firsts[source]) * row_bytes,
                      static_cast<std::size_t>(to[source].count) * row_bytes);
  }
  void combine(const Step& step, int rank, std::uint32_t halves, int routing = 0) {
    const Memory& its = memory_[at(rank)];
    headrace_moe_combine_v1 args{};
    args.struct_size = sizeof args;
    args.rank = &ranks_[at(rank)];
    args.halves = halves;
    args.weighted = step.options.weighted ? 1 : 0;
    args.routing = address(its.routings[routing]);
    const auto row_bytes = static_cast<std::uint64_t>(config_.combine_row_bytes());
    args.in_window = step.is_in_window ? 1 : 0;
    args.results = step.is_in_window ? 0 : address(its.results), args.result_stride = row_bytes;
    args.sums = address(its.sums), args.sum_stride = row_bytes;
    for (int i = 0; i < 2; ++i) args.biases[i] = step.options.biases.empty() ? 0 : address(its.biases[i]);
    args.accumulate = step.options.old.empty() ? 0 : 1;
    machine_.combine(rank, args);
  }

  /// What differs from what the rank must have got; empty: nothing.
  [[nodiscard]] std::string compare_rows(const Step& step, int rank) {
    const Memory& its = memory_[at(rank)];
    const Dispatched& expected = step.expected[at(rank)];
    std::string text;
    const auto differ = [&](const char* what, const void* got, const auto& wanted) {
      const std::size_t bytes = wanted.size() * sizeof wanted[0];
      const auto* const a = static_cast<const std::byte*>(got);
      const auto* const b = reinterpret_cast<const std::byte*>(wanted.data());
      const auto place = std::mismatch(b, b + bytes, a).first - b;
      if (static_cast<std::size_t>(place) != bytes)
        text += fmt::format("rank {}: {} differ at byte {} of {}; ", rank, what, place, bytes);
    };
    differ("counts", its.out_counts, expected.counts);
    differ("first_rows", its.out_first_rows, expected.first_rows);
    differ("rows", its.out_rows, expected.rows);
    differ("scales", scales_by_row(step, rank).data(), expected.scales);
    for (std::size_t i = 0; i < expected.payloads.size(); ++i)
      differ("payloads", its.out_payloads[i], expected.payloads[i]);
    differ("experts", its.out_experts, expected.experts);
    differ("weights", its.out_weights, expected.weights);
    return text + compare_status(expected, rank);
  }
  [[nodiscard]] std::string compare_sums(const Step& step, int rank) const {
    const Bytes& expected = step.sums[at(rank)];
    const auto place = std::mismatch(expected.begin(), expected.end(), memory_[at(rank)].sums).first;
    if (place == expected.end()) return {};
    return fmt::format("rank {}: sums differ at byte {} of {}; ", rank, place - expected.begin(),
                       expected.size());
  }

 private:
  static constexpr std::int64_t most_gap = 9;
  struct Memory {
    std::byte *words, *routings[2], *window_rows;
    std::byte *rows, *scales, *experts, *small_experts, *weights;
    std::vector<std::byte*> payloads, out_payloads;
    std::byte *first_places, *places, *loads, *until, *before;
    std::byte *out_rows, *out_scales, *out_counts, *out_first_rows, *out_experts, *out_weights;
    std::byte *results, *sums, *biases[2];
  };

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  static std::uint64_t address(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }
  static void copy(const Bytes& from, std::byte* to) { std::ranges::copy(from, to); }
  static void copy(const Bytes& from, std::byte* to, std::int64_t row_bytes, std::int64_t stride) {
    for (std::int64_t at = 0, row = 0; at < std::ssize(from); at += row_bytes, ++row)
      std::memcpy(to + row * stride, from.data() + at, static_cast<std::size_t>(row_bytes));
  }
  static void copy(const ReplicaTable& table, const Memory& to) {
    std::ranges::copy(table.first, reinterpret_cast<std::int32_t*>(to.first_places));
    std::ranges::copy(table.places, reinterpret_cast<std::int32_t*>(to.places));
    std::ranges::copy(table.loads, reinterpret_cast<std::int64_t*>(to.loads));
    std::ranges::copy(table.until, reinterpret_cast<std::int64_t*>(to.until));
    std::ranges::copy(table.before, reinterpret_cast<std::int64_t*>(to.before));
  }
  [[nodiscard]] std::int64_t row_stride(const Step& step) const {
    return given_row_bytes(step) + 16 * step.placement.gap;
  }
  [[nodiscard]] std::int64_t given_row_bytes(const Step& step) const {
    return step.cast == MoECast::none ? config_.row_bytes() : config_.hidden * 2;
  }
  /// Rows whose scales lie in columns together: all; batched: those of an expert.
  [[nodiscard]] static std::int64_t placed_rows(const MoEConfig& config) {
    return config.layout == MoELayout::batched ? config.rows_of_expert() : config.output_rows();
  }
  [[nodiscard]] Bytes scales_by_row(const Step& step, int rank) const {
    const MoEConfig its = moe_reference::of_rank(config_, rank);
    Bytes made(static_cast<std::size_t>(its.output_rows() * its.scale_bytes));
    const std::int64_t rows = placed_rows(its), part = rows * its.scale_bytes;
    for (std::int64_t begin = 0; begin < std::ssize(made); begin += part)
      step.placement.each_scale(rows, its.scale_bytes, [&](auto by_row, auto placed, auto bytes) {
        std::memcpy(made.data() + begin + by_row, memory_[at(rank)].out_scales + begin + placed,
                    static_cast<std::size_t>(bytes));
      });
    return made;
  }

  [[nodiscard]] headrace_moe_rank_v1 rank_of(int rank, std::uint32_t blocks, std::int64_t timeout_ns) const {
    const MoEConfig its = moe_reference::of_rank(config_, rank);
    headrace_moe_rank_v1 made{};
    made.ranks = static_cast<std::uint32_t>(its.ranks), made.rank = static_cast<std::uint32_t>(rank);
    made.group_size = static_cast<std::uint32_t>(its.group_size);
    made.top_k = static_cast<std::uint32_t>(its.top_k);
    made.max_tokens = static_cast<std::uint32_t>(its.max_tokens);
    made.row_bytes = static_cast<std::uint64_t>(its.row_bytes());
    made.scale_bytes = static_cast<std::uint64_t>(its.scale_bytes);
    std::ranges::copy(its.payload_bytes, made.payload_bytes);
    made.hidden = static_cast<std::uint64_t>(its.hidden);
    made.combine_dtype = static_cast<std::int32_t>(its.combine_dtype);
    made.float8_combine = its.float8_combine ? 1 : 0;
    made.layout = static_cast<std::uint32_t>(its.layout);
    made.row_alignment = static_cast<std::uint32_t>(its.row_alignment);
    made.zero_padding = its.zero_padding ? 1 : 0;
    made.output_rows = static_cast<std::uint64_t>(its.layout == MoELayout::batched ? its.rows_of_expert()
                                                                                   : its.output_rows());
    for (int i = 0; i <= its.ranks; ++i)
      made.first_expert[i] = static_cast<std::uint32_t>(its.first_expert(i));
    made.sharing = made.ranks;
    made.blocks = blocks;
    made.timeout_ns = timeout_ns;
    return made;
  }

  void open(int rank) {
    headrace_moe_rank_v1& it = ranks_[at(rank)];
    for (int other = 0; other < config_.ranks; ++other) it.windows[other] = address(windows_[at(other)]);
    it.state = address(machine_.memory(machine_.table().state_bytes(&it), false));
    const MoEConfig its = moe_reference::of_rank(config_, rank);
    const auto bytes = [&](std::int64_t count, std::int64_t each) {
      return machine_.memory(static_cast<std::size_t>(count * each) + 128, true);
    };
    const std::int64_t tokens = its.max_tokens, entries = tokens * its.top_k, rows = its.output_rows();
    Memory made{};
    made.words = bytes(256, 1), made.window_rows = bytes(its.ranks, sizeof(headrace_moe_window_rows_v1));
    for (std::byte*& routing : made.routings)
      routing = machine_.memory(machine_.table().routing_bytes(&it), false);
    made.rows = bytes(tokens, std::max(its.row_bytes(), its.hidden * 2) + 16 * most_gap),
    made.scales = bytes(tokens, its.scale_bytes);
    for (const std::int64_t payload : its.payload_bytes) {
      made.payloads.push_back(bytes(tokens, payload + most_gap));
      made.out_payloads.push_back(bytes(rows, payload));
    }
    made.experts = bytes(entries, 8), made.small_experts = bytes(entries, 4),
    made.weights = bytes(entries, 4);
    made.first_places = bytes(its.experts + 1, 4), made.places = bytes(ReplicaTable::most_places(its), 4);
    made.loads = bytes(its.ranks, 8), made.until = bytes(ReplicaTable::most_places(its), 8);
    made.before = bytes(its.experts, 8);
    made.out_rows = bytes(rows, its.row_bytes()), made.out_scales = bytes(rows, its.scale_bytes);
    made.out_counts = bytes(its.local_experts(), 4);
    made.out_first_rows = bytes(std::max(its.local_experts(), its.ranks) + 1, 8);
    made.out_experts = bytes(rows, its.top_k * 4), made.out_weights = bytes(rows, its.top_k * 4);
    made.results = bytes(rows, its.combine_row_bytes()), made.sums = bytes(tokens, its.combine_row_bytes());
    for (std::byte*& bias : made.biases) bias = bytes(tokens, its.combine_row_bytes());
    it.abort = address(made.words), it.status = address(made.words + 64),
    it.active = address(made.words + 128);
    memory_.push_back(made);
    set_active(rank, moe_reference::all_ranks);
  }

  /// Takes the status: a later launch may write another one.
  [[nodiscard]] std::string compare_status(const Dispatched& expected, int rank) {
    headrace_moe_status_v1& seen = status(rank);
    const std::uint64_t reason = __atomic_load_n(&seen.reason, __ATOMIC_ACQUIRE);
    const bool fits = expected.needed <= expected.available;
    const bool is_right = fits ? reason == 0
                               : reason == HEADRACE_MOE_EXHAUSTED &&
                                     seen.seen == static_cast<std::uint64_t>(expected.needed) &&
                                     seen.expected == static_cast<std::uint64_t>(expected.available);
    const std::string text = fmt::format(
        "rank {}: status {} (peer {}, operation {}, awaited {}, number {}, expected {}, seen {}) where {} "
        "rows "
        "of {} are needed; ",
        rank, reason, seen.peer, seen.operation, seen.awaited, seen.number, seen.expected, seen.seen,
        expected.needed, expected.available);
    __atomic_store_n(&seen.reason, 0, __ATOMIC_RELEASE);
    return is_right ? std::string() : text;
  }

  Machine& machine_;
  const MoEConfig config_;
  std::vector<headrace_moe_rank_v1> ranks_;
  std::vector<std::byte*> windows_;
  std::vector<Memory> memory_;
};

inline constexpr std::uint32_t both_halves = HEADRACE_MOE_SEND | HEADRACE_MOE_RECEIVE;

/// A step of all ranks; `in_halves`: sends and receives are launches of their own. Returns what differs.
inline std::string run_step(Machine& machine, Ranks& ranks, const Step& step, bool in_halves) {
  std::string text;
  const int count = ranks.config().ranks;
  const auto each = [&](const auto& body) {
    for (int rank = 0; rank < count; ++rank) body(rank);
  };
  const auto in_turn = [&](const auto& launch) {
    if (!in_halves) return each([&](int rank) { launch(rank, both_halves); });
    each([&](int rank) { launch(rank, HEADRACE_MOE_SEND); });
    each([&](int rank) { launch(rank, HEADRACE_MOE_RECEIVE); });
  };
  each([&](int rank) { ranks.give(step, rank); });
  in_turn([&](int rank, std::uint32_t halves) { ranks.dispatch(step, rank, halves); });
  each([&](int rank) { machine.wait(rank); });
  each([&](int rank) { text += ranks.compare_rows(step, rank); });
  if (step.is_in_window) {
    each([&](int rank) { ranks.combine_memory(rank); });
    each([&](int rank) { machine.wait(rank); });
    each([&](int rank) { ranks.write_to_windows(step, rank); });
  }
  in_turn([&](int rank, std::uint32_t halves) { ranks.combine(step, rank, halves); });
  each([&](int rank) { machine.wait(rank); });
  each([&](int rank) { text += ranks.compare_sums(step, rank); });
  return text;
}

/// A step of the ranks of a mask, which all of them know before. Returns what differs.
inline std::string run_masked_step(Machine& machine, Ranks& ranks, const Step& step, Mask mask) {
  std::string text;
  const auto each = [&](const auto& body) {
    for (int rank = 0; rank < ranks.config().ranks; ++rank)
      if (moe_reference::is_active(mask, rank)) body(rank);
  };
  each([&](int rank) { ranks.set_active(rank, mask), ranks.give(step, rank); });
  each([&](int rank) { ranks.dispatch(step, rank, both_halves), ranks.combine(step, rank, both_halves); });
  each([&](int rank) { machine.wait(rank); });
  each([&](int rank) { text += ranks.compare_rows(step, rank) + ranks.compare_sums(step, rank); });
  return text;
}

/// Of 3 ranks with a short patience, rank 1 comes when the others have left it out, and has a wrong expert to
/// report first. Returns what its status says wrongly.
inline std::string run_late_step(Machine& machine, Ranks& ranks, Random& random) {
  const MoEConfig& config = ranks.config();
  Step step(random, config, Choice::uniform, 0b101);
  step.inputs[1] = random_tokens(random, config, 5, Choice::uniform);
  step.make_plain(config, 0b101);
  step.inputs[1].experts[3] = config.experts;
  const auto dispatch = [&](int rank) {
    ranks.dispatch(step, rank, both_halves);
    machine.wait(rank);
  };
  for (const int rank : {0, 1, 2}) ranks.give(step, rank);
  for (const int rank : {0, 2}) ranks.dispatch(step, rank, both_halves);
  for (const int rank : {0, 2}) machine.wait(rank);
  headrace_moe_status_v1& seen = ranks.status(1);
  std::string text;
  const auto expect = [&](std::uint64_t reason, const char* when) {
    if (seen.reason != reason) text += fmt::format("{}: reason {}, expected {}; ", when, seen.reason, reason);
  };
  dispatch(1);
  expect(HEADRACE_MOE_WRONG_EXPERT, "the first launch");
  dispatch(1);
  expect(HEADRACE_MOE_WRONG_EXPERT, "a launch whose report has no room");
  seen = {};
  dispatch(1);
  expect(HEADRACE_MOE_LEFT_OUT, "a launch whose report has room");
  if (seen.waiter != 1 || (seen.peer != 0 && seen.peer != 2))
    text += fmt::format("waiter {}, peer {}", seen.waiter, seen.peer);
  return text;
}

/// A routing is used again with other rows, and with other weights or without. Returns what differs.
inline std::string repeat_step(Machine& machine, Ranks& ranks, Random& random, Step step) {
  std::string text = run_step(machine, ranks, step, false);
  const MoEConfig& config = ranks.config();
  step.uses_routing_again = true;
  for (const bool gives_weights : {false, true, false}) {
    step.gives_weights = gives_weights;
    const std::uint64_t seed = random();
    for (int rank = 0; rank < config.ranks; ++rank) {
      Tokens& tokens = step.inputs[static_cast<std::size_t>(rank)];
      Random of_group(seed + static_cast<std::uint64_t>(rank / config.group_size));
      tokens.rows = step.cast == MoECast::none
                        ? random_bytes(of_group, std::ssize(tokens.rows))
                        : random_rows(of_group, DType::bfloat16, tokens.count * config.hidden);
      if (gives_weights)
        for (float& weight : tokens.weights) weight = std::uniform_real_distribution<float>(0, 1)(of_group);
    }
    step.expect(config, moe_reference::all_ranks);
    text += run_step(machine, ranks, step, false);
  }
  return text;
}

}  // namespace headrace::moe_steps
