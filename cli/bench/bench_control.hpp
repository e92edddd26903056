// SPDX-License-Identifier: Apache-2.0
// What the ranks of a benchmark tell each other, beside what is measured: always over the host.
#pragma once

#include "cli/bench/bench_ranks.hpp"

#include <headrace/comm.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headrace::cli {

/// Every rank makes the same calls.
class BenchControl {
 public:
  [[nodiscard]] static Result<BenchControl> open(const RankPlace& place);

  [[nodiscard]] Result<void> meet();
  [[nodiscard]] Result<double> largest(double value) { return reduced(value, ReduceOp::max); }
  /// Each value becomes the largest of all ranks at its place.
  [[nodiscard]] Result<void> make_largest(std::span<double> values);
  [[nodiscard]] Result<std::uint64_t> sum(std::uint64_t value) { return reduced(value, ReduceOp::sum); }
  /// The value of rank 0.
  [[nodiscard]] Result<std::uint64_t> first(std::uint64_t value);
  /// The texts of all ranks.
  [[nodiscard]] Result<std::vector<std::string>> gather(const std::string& own);

 private:
  explicit BenchControl(Comm comm) : comm_(std::move(comm)) {}
  template <class Value>
  Result<Value> reduced(Value value, ReduceOp op);
  Comm comm_;
};

}  // namespace headrace::cli
