// SPDX-License-Identifier: Apache-2.0
// Sums of rows in float32, in a fixed order: each product is rounded, then each sum. sums.cpp alone is
// compiled with -O3 and without fused steps, so all CPUs get the same bits.
#pragma once

#include <headrace/tensor.hpp>

#include <cstddef>
#include <span>

namespace headrace::moe {

/// A row of sums. It begins with its first term; without one it is zero.
class RowSum {
 public:
  /// `sums`: as many as a row has elements; used by one sum at a time.
  RowSum(std::span<float> sums, DType dtype) : sums_(sums), dtype_(dtype) {}

  void begin() { empty_ = true; }
  /// Adds weight * row. With weight 1 the row itself.
  void add(const std::byte* row, float weight = 1);
  /// Adds a row of float8_e4m3fn in blocks, whose scales lie behind it (float8_blocks.hpp).
  ///   values  as many as a row has elements
  void add_blocks(const std::byte* row, std::span<float> values);
  /// Writes the sum, rounded once.
  void store(std::byte* row) const;
  /// Writes the sum as add_blocks reads it, each element rounded once.
  void store_blocks(std::byte* row);

 private:
  std::span<float> sums_;
  DType dtype_;
  bool empty_ = true;
};

}  // namespace headrace::moe
