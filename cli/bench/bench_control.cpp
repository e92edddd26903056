// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_control.hpp"

#include <algorithm>
#include <cstddef>

namespace headrace::cli {

Result<BenchControl> BenchControl::open(const RankPlace& place) {
  CommOptions options;
  options.rank = place.rank;
  options.size = place.ranks;
  options.meeting = place.meeting;
  options.name = "bench control";
  HEADRACE_CLI_TRY(comm, Comm::open(options));
  return BenchControl(std::move(comm));
}

template <class Value>
Result<Value> BenchControl::reduced(Value value, ReduceOp op) {
  std::vector<Value> all{value};
  HEADRACE_CLI_CHECK(comm_.all_reduce(all, op));
  return all[0];
}
template Result<double> BenchControl::reduced(double value, ReduceOp op);
template Result<std::uint64_t> BenchControl::reduced(std::uint64_t value, ReduceOp op);

Result<void> BenchControl::meet() {
  HEADRACE_CLI_CHECK(comm_.barrier());
  return {};
}

Result<void> BenchControl::make_largest(std::span<double> values) {
  HEADRACE_CLI_CHECK(comm_.all_reduce(values, ReduceOp::max));
  return {};
}

Result<std::uint64_t> BenchControl::first(std::uint64_t value) {
  std::vector<std::uint64_t> all{value};
  HEADRACE_CLI_CHECK(comm_.broadcast(all, 0));
  return all[0];
}

Result<std::vector<std::string>> BenchControl::gather(const std::string& own) {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  std::vector<std::uint64_t> lengths(ranks);
  const std::vector<std::uint64_t> length{own.size()};
  HEADRACE_CLI_CHECK(comm_.all_gather_single(lengths, length));
  const std::size_t longest = *std::ranges::max_element(lengths);
  std::vector<std::uint8_t> all(longest * ranks), mine(longest);
  std::ranges::copy(own, mine.begin());
  HEADRACE_CLI_CHECK(comm_.all_gather_single(all, mine));
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * longest);
    texts.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(lengths[rank]));
  }
  return texts;
}

}  // namespace headrace::cli
