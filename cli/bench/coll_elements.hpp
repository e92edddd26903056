// SPDX-License-Identifier: Apache-2.0
// Random elements for a benchmark of collectives, and what an operation must make of them. The elements of
// every rank follow from one seed, so each rank knows what the others have. All are so small that sums of
// many ranks stay inside their type, except where a type wraps around.
#pragma once

#include <headrace/comm_call.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace headrace::cli {

/// In the place of a rank: the reduction of all ranks' elements.
inline constexpr int reduction_of_all = -1;
/// The factor of premul_sum.
inline constexpr double premul_factor = 2;

/// A part of an output, in elements.
struct ExpectedPart {
  std::size_t begin = 0, count = 0;
  int rank = reduction_of_all;  ///< whose input it is
  std::size_t from = 0;         ///< first element in that input
};

/// Whether the reduction is defined for the type, as ReduceOp says.
[[nodiscard]] bool reduces(ReduceOp::Kind op, DType dtype);

class CollElements {
 public:
  /// rounded_to: the elements travel rounded to this type, as those of reduce_scatter_quantized do.
  CollElements(DType dtype, ReduceOp::Kind op, int ranks, std::uint64_t seed,
               std::optional<DType> rounded_to = {});

  /// Writes the input of a rank.
  void fill(std::span<std::byte> input, int rank) const;
  /// Counts the elements of the output that are not what they must be. Reduced floats may differ by the
  /// rounding of each addition; copies and all other reductions are exact.
  [[nodiscard]] std::uint64_t wrong(std::span<const std::byte> output, const ExpectedPart& part) const;

 private:
  [[nodiscard]] std::uint64_t pattern(int rank, std::size_t number) const;
  [[nodiscard]] bool is_copy(const std::byte* got, int rank, std::size_t index) const;
  [[nodiscard]] bool is_reduction(const std::byte* got, std::size_t index) const;
  [[nodiscard]] bool is_real_reduction(const std::byte* got, std::size_t number) const;
  [[nodiscard]] bool is_complex_product(const std::byte* got, std::size_t index) const;
  [[nodiscard]] std::uint64_t reduced_integer(std::size_t index) const;
  [[nodiscard]] std::uint64_t reduced_bool(std::size_t index) const;
  [[nodiscard]] double value(int rank, std::size_t number) const;

  const DType dtype_;
  const DType number_type_;  // of one number: half of a complex element
  const std::size_t number_bytes_;
  const std::size_t numbers_;  // of one element
  const ReduceOp::Kind op_;
  const int ranks_;
  const std::uint64_t seed_;
  const double step_;  // relative distance of two neighbouring floats, as they travel
};

}  // namespace headrace::cli
