// SPDX-License-Identifier: Apache-2.0
// Tokens for a benchmark of dispatch and combine, and what each rank must get. All follow from one seed, so
// each rank knows what the others send.
#pragma once

#include "cli/bench/expert_choice.hpp"

#include <headrace/moe.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::cli {

/// Where the tokens of one group go in one round.
struct MoERoute {
  std::vector<std::int64_t> experts;  ///< [max_tokens, top_k]; -1: none
  std::vector<float> weights;         ///< the same
};

/// The tokens of all groups. Each has max_tokens.
class MoEBenchTokens {
 public:
  MoEBenchTokens(const MoEConfig& config, ExpertChoice choice, std::uint64_t seed);

  /// Another one in each round.
  [[nodiscard]] MoERoute route(int group, std::uint64_t round) const;
  // The same in all rounds.
  [[nodiscard]] std::vector<std::byte> rows(int group) const;
  [[nodiscard]] std::vector<std::byte> scales(int group) const;

 private:
  [[nodiscard]] std::vector<std::byte> random_bytes(std::int64_t bytes, std::uint64_t part) const;

  const MoEConfig& config_;
  const ExpertChooser chooser_;
  const std::uint64_t seed_;
};

/// Rows or sums that are not what they must be.
struct MoEWrong {
  std::uint64_t count = 0;
  std::string first = {};  ///< "row 7 is not that of token 3 of rank 0, entry 1, for expert 130"

  void add(const std::string& what) {
    if (count++ == 0) first = what;
  }
};

/// What one rank must get in one round, made without the library: a list of rows, and sums of small whole
/// numbers, which are exact in each type and order.
class MoEExpected {
 public:
  MoEExpected(const MoEConfig& config, const MoEBenchTokens& tokens, std::uint64_t round);

  /// Overwrites the rows that will be written.
  void spoil_rows(const MoERows& out) const;
  [[nodiscard]] MoEWrong wrong_rows(const MoERows& got) const;
  /// Writes what the experts of this rank make of their rows.
  void fill_results(std::byte* rows) const;
  /// After a combine of the results of all ranks.
  [[nodiscard]] MoEWrong wrong_sums(const std::byte* sums) const;

  /// Where an entry of a group comes from.
  struct Entry {
    int group, expert;
    std::int64_t token;
    int k;
  };
  /// The rows of a rank, in order.
  [[nodiscard]] std::vector<Entry> rows_of(int rank) const;

 private:
  [[nodiscard]] const std::byte* result_of(const Entry& entry) const;
  [[nodiscard]] MoEWrong wrong_counts(const MoERows& got, std::span<const Entry> rows) const;

  const MoEConfig& config_;
  const MoEBenchTokens& tokens_;
  std::vector<MoERoute> routes_;    // of each group
  std::vector<std::byte> numbers_;  // of combine_dtype: a result begins at one of the first ones
};

}  // namespace headrace::cli
