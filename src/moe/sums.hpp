// SPDX-License-Identifier: Apache-2.0
// Sums of rows in float32, in a fixed order: each product is rounded, then each sum. sums.cpp alone is
// compiled with -O3 and without fused steps, so all CPUs get the same bits.
#pragma once

#include "base/instructions.hpp"

#include <headrace/moe.hpp>

#include <array>
#include <cstddef>

namespace headrace::moe {

/// A row of sums: its terms are gathered, and read when it is stored, a few elements of each at a time. It
/// begins with its first term; without one it is zero.
class RowSum {
 public:
  RowSum(std::size_t elements, DType dtype, Instructions instructions = best_instructions())
      : elements_(elements), dtype_(dtype), instructions_(instructions) {}

  /// Adds weight * row. With weight 1 the row itself.
  void add(const std::byte* row, float weight = 1) { terms_[count_++] = {row, weight, false}; }
  /// Adds a row of float8_e4m3fn in blocks, whose scales lie behind it (float8_blocks.hpp).
  void add_blocks(const std::byte* row) { terms_[count_++] = {row, 1, true}; }
  /// Writes the sum, rounded once. A term may lie there, too.
  void store(std::byte* row) const;
  /// Writes the sum as add_blocks reads it, each element rounded once.
  void store_blocks(std::byte* row) const;

  struct Term {
    const std::byte* row;
    float weight;
    bool has_blocks;
  };

 private:
  static constexpr std::size_t most_terms = moe_most_top_k + 3;  // two biases and what is accumulated
  std::array<Term, most_terms> terms_;
  std::size_t count_ = 0;
  const std::size_t elements_;
  const DType dtype_;
  const Instructions instructions_;
};

}  // namespace headrace::moe
