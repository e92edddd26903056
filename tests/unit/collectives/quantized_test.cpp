// SPDX-License-Identifier: Apache-2.0
// reduce_scatter whose bytes travel as bfloat16.
#include "collectives/quantized.hpp"
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace headrace::test {
namespace {

using collectives::round_stochastically;
using testing::HasSubstr;

float widened(std::uint16_t value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }

/// The distance of the two neighbours of a value in bfloat16, at most.
float step_of(float value) {
  return std::ldexp(1.0F, std::max(std::ilogb(value), std::numeric_limits<float>::min_exponent - 1) - 7);
}

TEST(StochasticRounding, goes_to_a_neighbour_and_its_error_has_the_mean_0) {
  constexpr std::size_t count = 100'000;
  for (const float value : {1.001F, -3.3F, 1e-30F, 123456.7F}) {
    const std::vector<float> from(count, value);
    std::vector<std::uint16_t> to(count);
    round_stochastically(from, to.data(), 7, 0);
    const double step = step_of(value);
    double sum = 0;
    for (const std::uint16_t one : to) {
      const double error = static_cast<double>(widened(one)) - static_cast<double>(value);
      EXPECT_LT(std::abs(error), step);
      sum += error;
    }
    // The error is spread over one step at most: its deviation is at most half of it. Six of the mean's.
    EXPECT_LT(std::abs(sum / count), 6 * step / 2 / std::sqrt(static_cast<double>(count))) << value;
  }
}

TEST(StochasticRounding, leaves_what_bfloat16_holds_as_it_is) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> from{0.0F, -0.0F, 1.0F, -2.5F, inf, -inf};
  std::vector<std::uint16_t> to(from.size());
  for (std::uint64_t stream = 0; stream < 100; ++stream) {
    round_stochastically(from, to.data(), stream, 0);
    for (std::size_t i = 0; i < from.size(); ++i)
      EXPECT_EQ(std::bit_cast<std::uint32_t>(widened(to[i])), std::bit_cast<std::uint32_t>(from[i]));
    const float nan = std::bit_cast<float>(0x7f800001U);
    round_stochastically({&nan, 1}, to.data(), stream, 0);
    EXPECT_TRUE(std::isnan(widened(to[0])));
  }
}

TEST(StochasticRounding, gives_the_same_numbers_for_the_same_stream_wherever_it_is_cut) {
  std::vector<float> from(1000, 1.001F);
  std::vector<std::uint16_t> whole(1000), cut(1000), other(1000);
  round_stochastically(from, whole.data(), 3, 0);
  round_stochastically(std::span(from).first(333), cut.data(), 3, 0);
  round_stochastically(std::span(from).subspan(333), cut.data() + 333, 3, 333);
  EXPECT_EQ(whole, cut);
  round_stochastically(from, other.data(), 4, 0);
  EXPECT_NE(whole, other);
}

/// What a rank has for all ranks.
std::vector<float> input_of(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::uniform_real_distribution<float> spread(-100, 100);
  std::vector<float> all(count);
  std::ranges::generate(all, [&] { return spread(random); });
  return all;
}

TEST(ReduceScatterQuantized, is_within_a_step_of_bfloat16_a_rank_and_its_error_has_the_mean_0) {
  constexpr std::size_t part = 200'000;  // several blocks
  constexpr int ranks = 3;
  with_ranks(
      ranks,
      [](Comm& comm) {
        std::vector<std::vector<float>> inputs;
        for (int rank = 0; rank < ranks; ++rank) inputs.push_back(input_of(rank, part * ranks));
        const std::size_t at = static_cast<std::size_t>(comm.rank()) * part;
        for (const ReduceOp::Kind op : {ReduceOp::sum, ReduceOp::avg}) {
          std::vector<float> output(part);
          ok(comm.reduce_scatter_quantized(output, inputs[static_cast<std::size_t>(comm.rank())], op, 42));
          const double scale = op == ReduceOp::avg ? ranks : 1;
          double errors = 0;
          std::size_t outside = 0;
          for (std::size_t i = 0; i < part; ++i) {
            double exact = 0, bound = 1e-4;  // of float32 sums
            for (int rank = 0; rank < ranks; ++rank) {
              const float value = inputs[static_cast<std::size_t>(rank)][at + i];
              exact += static_cast<double>(value);
              if (rank != comm.rank()) bound += static_cast<double>(step_of(value));
            }
            const double error = static_cast<double>(output[i]) * scale - exact;
            if (std::abs(error) > bound) ++outside;
            errors += error;
          }
          EXPECT_EQ(outside, 0U);
          // A step is 0.5 at most, the deviation of a rank's error half of it. Six of the mean's.
          const double deviation = 0.25 * std::sqrt(ranks - 1.0) / std::sqrt(static_cast<double>(part));
          EXPECT_LT(std::abs(errors / part), 6 * deviation);
        }
      },
      {{"block_bytes", "256KiB"}});
}

TEST(ReduceScatterQuantized, is_the_same_for_the_same_seed_and_may_be_asynchronous) {
  with_ranks(2, [](Comm& comm) {
    const auto input = input_of(comm.rank(), 2000);
    std::vector<float> first(1000), again(1000), other(1000);
    ok(comm.reduce_scatter_quantized(first, input, ReduceOp::sum, 1));
    const Work work = must(comm.reduce_scatter_quantized(again, input, ReduceOp::sum, 1, {.async = true}));
    must(work.wait());
    ok(comm.reduce_scatter_quantized(other, input, ReduceOp::sum, 2));
    EXPECT_EQ(first, again);
    EXPECT_NE(first, other);
  });
}

TEST(ReduceScatterQuantized, refuses_other_types_and_reductions) {
  with_ranks(1, [](Comm& comm) {
    std::vector<float> data(4);
    std::vector<double> doubles(4);
    EXPECT_THAT(comm.reduce_scatter_quantized(data, data, ReduceOp::max, 1).error().message,
                HasSubstr("sum and avg"));
    EXPECT_THAT(comm.reduce_scatter_quantized(doubles, doubles, ReduceOp::sum, 1).error().message,
                HasSubstr("float32"));
    ok(comm.reduce_scatter_quantized(data, data, ReduceOp::sum, 1));
  });
}

}  // namespace
}  // namespace headrace::test
