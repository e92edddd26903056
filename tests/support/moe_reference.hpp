// SPDX-License-Identifier: Apache-2.0
// Dispatch and combine of all ranks in one place: from the inputs of all, the outputs of all. No windows, no
// flags, no order of arrival; written to be read. docs/decisions/0017-moe.md has the rules.
#pragma once

#include "base/small_float.hpp"

#include <headrace/moe.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <tuple>
#include <vector>

namespace headrace::moe_reference {

using Bytes = std::vector<std::byte>;

/// The tokens of a rank. Ranks of one group have the same.
struct Tokens {
  std::int64_t count = 0;
  Bytes rows, scales;
  std::vector<std::int64_t> experts;  ///< [count, top_k]; -1: none
  std::vector<float> weights;         ///< [count, top_k]; empty: all are 1
  std::vector<Bytes> payloads = {};   ///< [count, payload_bytes of it]
};

/// An entry of a token, by the rank that sends it.
struct EntryId {
  int source;
  std::int64_t token;
  int k;
  friend auto operator<=>(const EntryId&, const EntryId&) = default;
};

/// What a rank gets. Rows that nothing is written to have the byte `untouched`.
struct Dispatched {
  static constexpr std::byte untouched{0xa5};
  Bytes rows, scales;
  std::vector<std::int32_t> counts;      ///< entries for each expert
  std::vector<std::int64_t> first_rows;  ///< of each expert (by_rank: of each source), and the end
  std::vector<std::int32_t> experts;     ///< by_rank: [rows, top_k], -1 behind the last
  std::vector<float> weights;            ///< by_rank: [rows, top_k], 0 behind the last
  std::int64_t needed = 0;               ///< rows; batched: of the expert with the most
  std::int64_t available = 0;
  std::vector<Bytes> payloads;
  /// The row of each entry; by_rank: of each record, with k = 0. Rows that were not written are not here.
  std::map<EntryId, std::int64_t> row_of;
};

using Mask = std::uint64_t;  ///< a bit for each active rank
inline constexpr Mask all_ranks = ~Mask{0};
inline bool is_active(Mask mask, int rank) { return (mask >> rank & 1) != 0; }

/// The rank of each expert.
inline std::vector<int> ranks_of_experts(const MoEConfig& config) {
  std::vector<int> ranks;
  for (int rank = 0; rank < config.ranks; ++rank)
    ranks.insert(ranks.end(), static_cast<std::size_t>(config.local_experts(rank)), rank);
  return ranks;
}

/// The rank of the group that sends a token.
inline int sender_of(const MoEConfig& config, int rank, std::int64_t token, std::int64_t tokens) {
  const std::int64_t each = (tokens + config.group_size - 1) / config.group_size;
  const std::int64_t part = (each + 15) / 16 * 16;
  return rank / config.group_size * config.group_size + static_cast<int>(token / part);
}

/// The entries of a token that go to one rank, in order of k.
///   ranks  of the experts
inline std::vector<int> entries_for(const std::vector<int>& ranks, const Tokens& tokens, std::int64_t token,
                                    int top_k, int target) {
  std::vector<int> ks;
  for (int k = 0; k < top_k; ++k) {
    const std::int64_t expert = tokens.experts[static_cast<std::size_t>(token * top_k + k)];
    if (expert >= 0 && ranks[static_cast<std::size_t>(expert)] == target) ks.push_back(k);
  }
  return ks;
}

class Dispatch {
 public:
  Dispatch(const MoEConfig& config, std::span<const Tokens> inputs, int target, Mask active)
      : config_(config),
        inputs_(inputs),
        target_(target),
        active_(active),
        experts_(static_cast<std::size_t>(config.local_experts())) {}

  Dispatched run() {
    const auto rows = static_cast<std::size_t>(config_.output_rows());
    out_.rows.assign(rows * static_cast<std::size_t>(config_.row_bytes()), Dispatched::untouched);
    out_.scales.assign(rows * static_cast<std::size_t>(config_.scale_bytes), Dispatched::untouched);
    for (const std::int64_t bytes : config_.payload_bytes)
      out_.payloads.emplace_back(rows * static_cast<std::size_t>(bytes), Dispatched::untouched);
    find_entries();
    config_.layout == MoELayout::by_rank ? place_records(rows) : place_entries();
    return std::move(out_);
  }

 private:
  /// Calls each(source, token) for all tokens that sources send, in order.
  template <class Each>
  void for_tokens(const Each& each) const {
    for (int source = 0; source < config_.ranks; ++source) {
      if (!is_active(active_, source)) continue;
      const Tokens& tokens = of(source);
      for (std::int64_t token = 0; token < tokens.count; ++token)
        if (sender_of(config_, source, token, tokens.count) == source) each(source, token);
    }
  }
  [[nodiscard]] const Tokens& of(int source) const { return inputs_[static_cast<std::size_t>(source)]; }
  [[nodiscard]] std::int64_t expert_of(const EntryId& entry) const {
    return of(entry.source).experts[static_cast<std::size_t>(entry.token * config_.top_k + entry.k)];
  }

  /// Of each expert, in the order of its rows; and those of each record.
  void find_entries() {
    const std::vector<int> ranks = ranks_of_experts(config_);
    for_tokens([&](int source, std::int64_t token) {
      const auto ks = entries_for(ranks, of(source), token, config_.top_k, target_);
      if (ks.empty()) return;
      records_.emplace_back();
      for (const int k : ks) {
        const EntryId entry{source, token, k};
        records_.back().push_back(entry);
        experts_[static_cast<std::size_t>(expert_of(entry) - config_.first_expert(target_))].push_back(entry);
      }
    });
    for (const auto& entries : experts_) out_.counts.push_back(static_cast<std::int32_t>(entries.size()));
  }

  void place_entries() {
    std::int64_t first = 0;
    for (int local = 0; local < config_.local_experts(); ++local) {
      out_.first_rows.push_back(first);
      const std::int64_t next = place_expert(local, first);
      if (config_.zero_padding) zero(next, round_up(next));
      first = config_.layout == MoELayout::batched ? first + config_.rows_of_expert() : round_up(next);
    }
    out_.first_rows.push_back(first);
    out_.needed = first;
    out_.available = config_.output_rows();
    if (config_.layout == MoELayout::batched) {
      out_.needed = 0;
      for (const std::int32_t count : out_.counts) out_.needed = std::max<std::int64_t>(out_.needed, count);
      out_.available = config_.rows_of_expert();
    }
  }
  /// Returns the row behind the last one.
  std::int64_t place_expert(int local, std::int64_t row) {
    const std::int64_t end =
        config_.layout == MoELayout::batched ? row + config_.rows_of_expert() : config_.output_rows();
    for (const EntryId& entry : experts_[static_cast<std::size_t>(local)]) {
      if (row < end) write_row(entry, row);
      ++row;
    }
    return row;
  }

  void place_records(std::size_t rows) {
    out_.experts.assign(rows * static_cast<std::size_t>(config_.top_k), -1);
    out_.weights.assign(rows * static_cast<std::size_t>(config_.top_k), 0);
    out_.first_rows.assign(static_cast<std::size_t>(config_.ranks) + 1, 0);
    std::int64_t row = 0;
    for (const auto& record : records_) {
      const EntryId& first = record.front();
      if (row < config_.output_rows()) {
        write_row({first.source, first.token, 0}, row);
        for (std::size_t i = 0; i < record.size(); ++i) write_entry(record[i], row, i);
      }
      ++row;
      for (int later = first.source + 1; later <= config_.ranks; ++later)
        out_.first_rows[static_cast<std::size_t>(later)] = row;
    }
    out_.needed = row;
    out_.available = config_.output_rows();
  }
  void write_entry(const EntryId& entry, std::int64_t row, std::size_t i) {
    const auto at = static_cast<std::size_t>(row * config_.top_k) + i;
    out_.experts[at] = static_cast<std::int32_t>(expert_of(entry) - config_.first_expert(target_));
    const auto& weights = of(entry.source).weights;
    out_.weights[at] =
        weights.empty() ? 1 : weights[static_cast<std::size_t>(entry.token * config_.top_k + entry.k)];
  }

  void write_row(const EntryId& entry, std::int64_t row) {
    copy(of(entry.source).rows, entry.token, out_.rows, row, config_.row_bytes());
    copy(of(entry.source).scales, entry.token, out_.scales, row, config_.scale_bytes);
    for (std::size_t i = 0; i < out_.payloads.size(); ++i)
      copy(of(entry.source).payloads[i], entry.token, out_.payloads[i], row, config_.payload_bytes[i]);
    out_.row_of[entry] = row;
  }
  static void copy(const Bytes& from, std::int64_t i, Bytes& to, std::int64_t j, std::int64_t bytes) {
    if (bytes != 0)
      std::memcpy(to.data() + j * bytes, from.data() + i * bytes, static_cast<std::size_t>(bytes));
  }
  void zero(std::int64_t begin, std::int64_t end) {
    end = std::min(end, config_.output_rows());
    for (std::int64_t row = begin; row < end; ++row) {
      std::fill_n(out_.rows.begin() + row * config_.row_bytes(), config_.row_bytes(), std::byte{0});
      std::fill_n(out_.scales.begin() + row * config_.scale_bytes, config_.scale_bytes, std::byte{0});
      for (std::size_t i = 0; i < out_.payloads.size(); ++i)
        std::fill_n(out_.payloads[i].begin() + row * config_.payload_bytes[i], config_.payload_bytes[i],
                    std::byte{0});
    }
  }
  [[nodiscard]] std::int64_t round_up(std::int64_t row) const {
    return (row + config_.row_alignment - 1) / config_.row_alignment * config_.row_alignment;
  }

  const MoEConfig& config_;
  std::span<const Tokens> inputs_;
  const int target_;
  const Mask active_;
  std::vector<std::vector<EntryId>> experts_, records_;
  Dispatched out_;
};

/// The configuration of one of the ranks.
inline MoEConfig of_rank(MoEConfig config, int rank) {
  config.rank = rank;
  return config;
}

/// The outputs of all ranks, from the inputs of all.
inline std::vector<Dispatched> dispatch(const MoEConfig& config, std::span<const Tokens> inputs,
                                        Mask active = all_ranks) {
  std::vector<Dispatched> outputs;
  for (int target = 0; target < config.ranks; ++target) {
    const MoEConfig of_target = of_rank(config, target);
    outputs.push_back(Dispatch(of_target, inputs, target, active).run());
  }
  return outputs;
}

inline float load(DType dtype, const std::byte* at) {
  std::uint16_t stored = 0;
  float value = 0;
  if (dtype == DType::float32) return std::memcpy(&value, at, sizeof value), value;
  std::memcpy(&stored, at, sizeof stored);
  return dtype == DType::float16 ? Float16::load(stored) : BFloat16::load(stored);
}
inline void store(DType dtype, std::byte* at, float value) {
  if (dtype == DType::float32) return static_cast<void>(std::memcpy(at, &value, sizeof value));
  const std::uint16_t stored = dtype == DType::float16 ? Float16::store(value) : BFloat16::store(value);
  std::memcpy(at, &stored, sizeof stored);
}

/// The scale of a block of 128 elements, as a float8_e4m3fn's and as it is stored.
struct Scale {
  float scale, inverse;
  int power;  ///< of two, if it is one
};
inline Scale scale_of(std::span<const float> block, MoECast cast) {
  float largest = 1e-4F;
  for (const float value : block) largest = std::max(largest, std::fabs(value));
  const float scale = largest / 448;
  if (cast != MoECast::ue8m0) return {scale, 448 / largest, 0};
  int power = 0;
  if (std::frexp(scale, &power) == 0.5F) --power;
  return {std::ldexp(1.0F, power), std::ldexp(1.0F, -power), power};
}

/// Tokens as they travel: rows of bfloat16 become float8_e4m3fn with scales.
inline Tokens cast_tokens(const MoEConfig& config, Tokens tokens, MoECast cast) {
  const auto hidden = static_cast<std::size_t>(config.hidden), count = static_cast<std::size_t>(tokens.count);
  Bytes rows, scales;
  for (std::size_t token = 0; token < count; ++token) {
    Bytes words(static_cast<std::size_t>(config.scale_bytes));
    for (std::size_t begin = 0, number = 0; begin < hidden; begin += 128, ++number) {
      std::vector<float> block;
      for (std::size_t i = begin; i < std::min(begin + 128, hidden); ++i)
        block.push_back(load(DType::bfloat16, tokens.rows.data() + (token * hidden + i) * 2));
      const Scale scale = scale_of(block, cast);
      for (const float value : block)
        rows.push_back(static_cast<std::byte>(Float8E4M3::store(value * scale.inverse)));
      if (cast == MoECast::ue8m0)
        words[number] = static_cast<std::byte>(scale.power + 127);
      else
        store(DType::float32, words.data() + number * 4, scale.scale);
    }
    scales.insert(scales.end(), words.begin(), words.end());
  }
  tokens.rows = std::move(rows), tokens.scales = std::move(scales);
  return tokens;
}

/// A sum in float32: it begins with its first term, each product and each sum is rounded.
class Sum {
 public:
  void add(float weight, float value) {
    const volatile float product = weight * value;  // not one step with the addition
    sum_ = empty_ ? product : sum_ + product;
    empty_ = false;
  }
  [[nodiscard]] float value() const { return sum_; }

 private:
  float sum_ = 0;
  bool empty_ = true;
};

struct CombineOptions {
  bool weighted = true;
  std::vector<std::vector<Bytes>> biases = {};  ///< of each rank, up to two: a row for each token
  std::vector<Bytes> old = {};                  ///< of each rank: what is added to; empty: nothing
};

class Combine {
 public:
  Combine(const MoEConfig& config, std::span<const Tokens> inputs, std::span<const Dispatched> dispatched,
          std::span<const Bytes> results, const CombineOptions& options, Mask active)
      : config_(config),
        inputs_(inputs),
        dispatched_(dispatched),
        results_(results),
        options_(options),
        active_(active) {}

  [[nodiscard]] Bytes output_of(int rank) const {
    const std::int64_t tokens = inputs_[static_cast<std::size_t>(rank)].count;
    Bytes output(static_cast<std::size_t>(tokens * config_.combine_row_bytes()));
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto parts = parts_of(rank, token);
      std::vector<std::vector<float>> partials;
      for (const Part& part : parts) partials.push_back(partial(part));
      for (std::int64_t i = 0; i < config_.hidden; ++i)
        store(config_.combine_dtype, output.data() + offset(token, i), element(partials, rank, token, i));
    }
    return output;
  }

 private:
  struct Term {
    float weight;
    const std::byte* row;
  };
  using Part = std::vector<Term>;  ///< what one target adds

  [[nodiscard]] std::size_t offset(std::int64_t row, std::int64_t i) const {
    return static_cast<std::size_t>((row * config_.hidden + i) *
                                    static_cast<std::int64_t>(element_bytes(config_.combine_dtype)));
  }

  /// In order of the targets.
  [[nodiscard]] std::vector<Part> parts_of(int rank, std::int64_t token) const {
    const Tokens& tokens = inputs_[static_cast<std::size_t>(rank)];
    const int source = sender_of(config_, rank, token, tokens.count);
    std::vector<Part> parts;
    for (int target = 0; target < config_.ranks; ++target) {
      const auto ks = entries_for(ranks_, tokens, token, config_.top_k, target);
      if (!ks.empty() && is_active(active_, target)) parts.push_back(part_of(source, token, target, ks));
    }
    return parts;
  }
  [[nodiscard]] Part part_of(int source, std::int64_t token, int target, const std::vector<int>& ks) const {
    const Dispatched& there = dispatched_[static_cast<std::size_t>(target)];
    const auto& weights = inputs_[static_cast<std::size_t>(source)].weights;
    const bool by_rank = config_.layout == MoELayout::by_rank;
    const bool weighs = options_.weighted && !by_rank && !weights.empty();
    Part part;
    for (const int k : by_rank ? std::vector<int>{0} : ks) {
      const auto row = there.row_of.find({source, token, k});
      if (row == there.row_of.end()) continue;  // beyond the budget
      const float weight = weighs ? weights[static_cast<std::size_t>(token * config_.top_k + k)] : 1;
      part.push_back({weight, results_[static_cast<std::size_t>(target)].data() + offset(row->second, 0)});
    }
    return part;
  }

  [[nodiscard]] float element(const std::vector<std::vector<float>>& partials, int rank, std::int64_t token,
                              std::int64_t i) const {
    const auto at = static_cast<std::size_t>(rank);
    Sum sum;
    for (const auto& partial : partials) sum.add(1, partial[static_cast<std::size_t>(i)]);
    if (!options_.biases.empty())
      for (const Bytes& bias : options_.biases[at])
        sum.add(1, load(config_.combine_dtype, bias.data() + offset(token, i)));
    if (!options_.old.empty())
      sum.add(1, load(config_.combine_dtype, options_.old[at].data() + offset(token, i)));
    return sum.value();
  }
  /// What a target sends back, rounded to the type in which it travels.
  [[nodiscard]] std::vector<float> partial(const Part& part) const {
    std::vector<float> row;
    for (std::int64_t i = 0; i < config_.hidden; ++i) {
      Sum sum;
      for (const Term& term : part)
        sum.add(term.weight, load(config_.combine_dtype, term.row + offset(0, i)));
      row.push_back(sum.value());
    }
    config_.float8_combine ? round_blocks(row) : round(row);
    return row;
  }
  void round(std::vector<float>& row) const {
    for (float& value : row) {
      std::byte rounded[4];
      store(config_.combine_dtype, rounded, value);
      value = load(config_.combine_dtype, rounded);
    }
  }
  static void round_blocks(std::vector<float>& row) {
    for (std::size_t begin = 0; begin < row.size(); begin += 128) {
      const auto block = std::span(row).subspan(begin, std::min<std::size_t>(128, row.size() - begin));
      const Scale scale = scale_of(block, MoECast::float32);
      for (float& value : block)
        value = Float8E4M3::load(Float8E4M3::store(value * scale.inverse)) * scale.scale;
    }
  }

  const MoEConfig& config_;
  std::span<const Tokens> inputs_;
  std::span<const Dispatched> dispatched_;
  std::span<const Bytes> results_;
  const CombineOptions& options_;
  const Mask active_;
  const std::vector<int> ranks_ = ranks_of_experts(config_);
};

/// The outputs of all ranks.
///   results  of each rank: a row of combine_dtype for each row that it got
inline std::vector<Bytes> combine(const MoEConfig& config, std::span<const Tokens> inputs,
                                  std::span<const Dispatched> dispatched, std::span<const Bytes> results,
                                  const CombineOptions& options = {}, Mask active = all_ranks) {
  const Combine all(config, inputs, dispatched, results, options, active);
  std::vector<Bytes> outputs;
  for (int rank = 0; rank < config.ranks; ++rank) outputs.push_back(all.output_of(rank));
  return outputs;
}

}  // namespace headrace::moe_reference
