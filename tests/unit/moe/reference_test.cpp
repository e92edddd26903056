// SPDX-License-Identifier: Apache-2.0
// The reference, by examples that were made by hand.
#include "support/moe_reference.hpp"

#include <gtest/gtest.h>

namespace headrace::moe_reference {
namespace {

constexpr std::int64_t hidden = 8;

/// Two ranks with two experts each: 0 and 1 on rank 0, 2 and 3 on rank 1.
MoEConfig two_ranks() {
  MoEConfig config;
  config.ranks = 2;
  config.experts = 4;
  config.top_k = 2;
  config.hidden = hidden;
  config.dtype = config.combine_dtype = DType::float32;
  config.max_tokens = 4;
  return config;
}

/// Rows that hold one number each.
Bytes rows_of(const std::vector<float>& numbers) {
  Bytes rows;
  for (const float number : numbers) {
    std::byte bytes[4];
    std::memcpy(bytes, &number, sizeof number);
    for (int i = 0; i < hidden; ++i) rows.insert(rows.end(), bytes, bytes + 4);
  }
  return rows;
}
/// The number of each row; those that nothing was written to are -1.
std::vector<float> numbers_of(const Bytes& rows) {
  std::vector<float> numbers;
  for (std::size_t at = 0; at < rows.size(); at += hidden * 4) {
    float number = -1;
    if (rows[at] != Dispatched::untouched) std::memcpy(&number, rows.data() + at, 4);
    numbers.push_back(number);
    for (std::size_t i = 1; i < hidden; ++i) EXPECT_EQ(std::memcmp(&rows[at], &rows[at + i * 4], 4), 0);
  }
  return numbers;
}

/// Rank 0: token 10 to experts 2 and 0; token 11 to 2 and 3; token 12 to none.
/// Rank 1: token 20 to expert 0 twice; token 21 to 3.
std::vector<Tokens> five_tokens() {
  return {{3, rows_of({10, 11, 12}), {}, {2, 0, 2, 3, -1, -1}, {0.5F, 0.25F, 1, 2, 7, 7}},
          {2, rows_of({20, 21}), {}, {0, 0, -1, 3}, {0.5F, 0.5F, 7, 3}}};
}

using Numbers = std::vector<float>;

TEST(MoEReference, rows_by_expert_are_ordered_by_source_and_token) {
  const auto out = dispatch(two_ranks(), five_tokens());
  EXPECT_EQ(out[0].counts, (std::vector<std::int32_t>{3, 0}));
  EXPECT_EQ(out[0].first_rows, (std::vector<std::int64_t>{0, 3, 3}));
  Numbers rows = numbers_of(out[0].rows);
  rows.resize(4);
  EXPECT_EQ(rows, (Numbers{10, 20, 20, -1}));
  EXPECT_EQ(out[1].counts, (std::vector<std::int32_t>{2, 2}));
  rows = numbers_of(out[1].rows);
  rows.resize(5);
  EXPECT_EQ(rows, (Numbers{10, 11, 11, 21, -1}));
}

TEST(MoEReference, experts_begin_at_the_alignment_and_padding_is_zeroed_if_asked) {
  MoEConfig config = two_ranks();
  config.row_alignment = 4;
  EXPECT_EQ(dispatch(config, five_tokens())[1].first_rows, (std::vector<std::int64_t>{0, 4, 8}));
  Numbers rows = numbers_of(dispatch(config, five_tokens())[1].rows);
  rows.resize(8);
  EXPECT_EQ(rows, (Numbers{10, 11, -1, -1, 11, 21, -1, -1}));
  config.zero_padding = true;
  rows = numbers_of(dispatch(config, five_tokens())[1].rows);
  rows.resize(9);
  EXPECT_EQ(rows, (Numbers{10, 11, 0, 0, 11, 21, 0, 0, -1}));
}

TEST(MoEReference, batched_experts_have_the_same_number_of_rows) {
  MoEConfig config = two_ranks();
  config.layout = MoELayout::batched;
  config.row_budget = 3;
  EXPECT_EQ(numbers_of(dispatch(config, five_tokens())[1].rows), (Numbers{10, 11, -1, 11, 21, -1}));
  EXPECT_EQ(dispatch(config, five_tokens())[1].first_rows, (std::vector<std::int64_t>{0, 3, 6}));
}

TEST(MoEReference, by_rank_a_token_comes_once_with_its_experts_and_weights) {
  MoEConfig config = two_ranks();
  config.layout = MoELayout::by_rank;
  const Dispatched out = dispatch(config, five_tokens())[1];
  Numbers rows = numbers_of(out.rows);
  rows.resize(4);
  EXPECT_EQ(rows, (Numbers{10, 11, 21, -1}));
  EXPECT_EQ(std::vector(out.experts.begin(), out.experts.begin() + 6),
            (std::vector<std::int32_t>{0, -1, 0, 1, 1, -1}));
  EXPECT_EQ(Numbers(out.weights.begin(), out.weights.begin() + 6), (Numbers{0.5F, 0, 1, 2, 3, 0}));
  EXPECT_EQ(out.first_rows, (std::vector<std::int64_t>{0, 2, 3}));
}

TEST(MoEReference, rows_beyond_the_budget_are_counted_and_not_written) {
  MoEConfig config = two_ranks();
  config.row_budget = 3;
  const Dispatched out = dispatch(config, five_tokens())[1];
  EXPECT_EQ(numbers_of(out.rows), (Numbers{10, 11, 11}));
  EXPECT_EQ(out.needed, 4);
  EXPECT_EQ(out.available, 3);
  EXPECT_EQ(out.counts, (std::vector<std::int32_t>{2, 2}));
}

/// What experts answer: the number of the row plus 100 times that of the expert, which is its first row here.
std::vector<Bytes> doubled(const std::vector<Dispatched>& dispatched) {
  std::vector<Bytes> results;
  for (const Dispatched& rank : dispatched) {
    Numbers numbers = numbers_of(rank.rows);
    for (float& number : numbers) number *= 2;
    results.push_back(rows_of(numbers));
  }
  return results;
}

TEST(MoEReference, combine_weighs_and_adds_over_experts_and_ranks) {
  const auto tokens = five_tokens();
  const auto there = dispatch(two_ranks(), tokens);
  const auto back = combine(two_ranks(), tokens, there, doubled(there));
  EXPECT_EQ(numbers_of(back[0]), (Numbers{20 * 0.75F, 22 * 3, 0}));
  EXPECT_EQ(numbers_of(back[1]), (Numbers{40, 42 * 3}));
  const auto plain = combine(two_ranks(), tokens, there, doubled(there), {.weighted = false});
  EXPECT_EQ(numbers_of(plain[0]), (Numbers{40, 44, 0}));
}

TEST(MoEReference, combine_adds_biases_and_what_was_there) {
  const auto tokens = five_tokens();
  const auto there = dispatch(two_ranks(), tokens);
  CombineOptions options;
  options.biases = {{rows_of({1, 2, 3}), rows_of({100, 100, 100})}, {rows_of({4, 5}), rows_of({0, 0})}};
  options.old = {rows_of({1000, 1000, 1000}), rows_of({0, 1000})};
  const auto back = combine(two_ranks(), tokens, there, doubled(there), options);
  EXPECT_EQ(numbers_of(back[0]), (Numbers{1116, 1168, 1103}));
  EXPECT_EQ(numbers_of(back[1]), (Numbers{44, 1131}));
}

TEST(MoEReference, partials_are_rounded_before_they_are_added) {
  MoEConfig config = two_ranks();
  config.combine_dtype = DType::bfloat16;
  // 256 + 1 is no bfloat16 and rounds to 256, on rank 0; so does not the sum of the three.
  const std::vector<Tokens> tokens{{1, rows_of({1}), {}, {0, 1}, {}}, {}};
  const auto there = dispatch(config, tokens);
  Bytes results(there[0].rows.size() / 2);
  for (std::int64_t i = 0; i < 2 * hidden; ++i)
    store(DType::bfloat16, results.data() + i * 2, i < hidden ? 256.0F : 1.0F);
  const CombineOptions options{.biases = {{Bytes(hidden * 2)}, {Bytes()}}};
  const auto with_one = [&] {
    CombineOptions more = options;
    for (std::int64_t i = 0; i < hidden; ++i) store(DType::bfloat16, more.biases[0][0].data() + i * 2, 1.0F);
    return combine(config, tokens, there, std::vector<Bytes>{results, {}}, more);
  }();
  EXPECT_EQ(load(DType::bfloat16, with_one[0].data()), 256.0F);  // 256 + 1 again, not 258
}

TEST(MoEReference, entries_for_a_rank_that_is_left_out_are_skipped) {
  const auto tokens = five_tokens();
  const auto there = dispatch(two_ranks(), tokens, 0b01);
  EXPECT_EQ(there[0].counts, (std::vector<std::int32_t>{1, 0}));
  const auto back = combine(two_ranks(), tokens, there, doubled(there), {}, 0b01);
  EXPECT_EQ(numbers_of(back[0]), (Numbers{20 * 0.25F, 0, 0}));
}

TEST(MoEReference, ranks_of_a_group_send_each_token_once_and_all_get_the_sum) {
  MoEConfig config = two_ranks();
  config.group_size = 2, config.max_tokens = 20;
  Numbers numbers;
  std::vector<std::int64_t> experts;
  for (int token = 0; token < 20; ++token) {
    numbers.push_back(static_cast<float>(token));
    experts.insert(experts.end(), {token % 4, -1});
  }
  const Tokens same{20, rows_of(numbers), {}, experts, {}};
  const std::vector<Tokens> tokens{same, same};
  const auto there = dispatch(config, tokens);
  EXPECT_EQ(there[0].counts, (std::vector<std::int32_t>{5, 5}));
  EXPECT_TRUE(there[0].row_of.contains({0, 12, 0}));  // of the first chunk, which rank 0 sends
  EXPECT_TRUE(there[0].row_of.contains({1, 16, 0}));
  const auto back = combine(config, tokens, there, doubled(there));
  EXPECT_EQ(back[0], back[1]);
  EXPECT_EQ(numbers_of(back[1])[19], 38);
}

}  // namespace
}  // namespace headrace::moe_reference
