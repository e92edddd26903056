// SPDX-License-Identifier: Apache-2.0
// What `headrace bench moe` compares with finds each kind of difference, and tokens choose as they are told.
#include "cli/bench/moe_tokens.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace headrace::cli {
namespace {

constexpr int experts = 24;

std::vector<std::int64_t> chosen(ExpertChoice choice) {
  const ExpertChooser chooser(choice, experts);
  BenchRandom random(3);
  std::vector<std::int64_t> all(4000);
  for (auto rest = std::span(all); !rest.empty(); rest = rest.subspan(4)) {
    chooser.choose(random, rest.first(4));
    for (std::size_t k = 0; k < 4; ++k)
      EXPECT_EQ(std::ranges::count(rest.first(k), rest[k]),
                rest[k] == -1 ? std::ranges::count(rest.first(k), -1) : 0);
  }
  return all;
}

double share(const std::vector<std::int64_t>& all, std::int64_t first, std::int64_t end) {
  const auto is_there = [&](std::int64_t expert) { return expert >= first && expert < end; };
  return static_cast<double>(std::ranges::count_if(all, is_there)) / static_cast<double>(all.size());
}

TEST(ExpertChooserTest, TokensChooseDifferentExpertsAsTheyAreTold) {
  EXPECT_NEAR(share(chosen(ExpertChoice::uniform), 0, 12), 0.5, 0.05);
  const auto zipf = chosen(ExpertChoice::zipf);
  EXPECT_GT(share(zipf, 0, 1), 3 * share(zipf, 11, 12));
  EXPECT_GT(share(chosen(ExpertChoice::k_hot), 0, 3), 0.5);  // three of four, as no expert comes twice
  EXPECT_NEAR(share(chosen(ExpertChoice::masked), -1, 0), 0.3, 0.05);
}

TEST(ExpertChooserTest, ATokenMayNameAllExperts) {
  std::vector<std::int64_t> entries(experts);
  BenchRandom random(4);
  ExpertChooser(ExpertChoice::k_hot, experts).choose(random, entries);
  std::ranges::sort(entries);
  std::vector<std::int64_t> all(experts);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(entries, all);
}

/// The second of two ranks, with the outputs that it must get.
class MoEExpectedTest : public testing::Test {
 protected:
  MoEExpectedTest() {
    fill_rows();
    fill_sums();
  }
  static MoEConfig make_config() {
    MoEConfig config;
    config.rank = 1, config.ranks = 2, config.experts = 6, config.top_k = 2, config.hidden = 16;
    config.max_tokens = 5, config.scale_bytes = 4;
    return config;
  }
  void fill_rows() {
    entries_ = expected_.rows_of(1);
    std::vector<std::byte> sent[2] = {tokens_.rows(0), tokens_.rows(1)};
    std::vector<std::byte> scales[2] = {tokens_.scales(0), tokens_.scales(1)};
    for (const auto& entry : entries_) {
      const auto token = static_cast<std::size_t>(entry.token);
      rows_.insert(rows_.end(), sent[entry.group].begin() + token * 32,
                   sent[entry.group].begin() + token * 32 + 32);
      scales_.insert(scales_.end(), scales[entry.group].begin() + token * 4,
                     scales[entry.group].begin() + token * 4 + 4);
      ++counts_[static_cast<std::size_t>(entry.expert - 3)];
    }
    for (std::size_t i = 0; i < 3; ++i) first_rows_[i + 1] = first_rows_[i] + counts_[i];
    out_.rows = rows_.data(), out_.scales = scales_.data();
    out_.counts = counts_.data(), out_.first_rows = first_rows_.data();
  }
  /// By the results of both ranks.
  void fill_sums() {
    const MoERoute route = tokens_.route(1, round);
    sums_.assign(5 * 32, std::byte{0});
    for (int rank = 0; rank < 2; ++rank) {
      MoEConfig config = config_;
      config.rank = rank;
      const MoEExpected of_rank(config, tokens_, round);
      const auto entries = of_rank.rows_of(rank);
      std::vector<std::byte> results(entries.size() * 32);
      of_rank.fill_results(results.data());
      for (std::size_t i = 0; i < entries.size(); ++i)
        if (entries[i].group == 1)
          add(entries[i], route.weights[static_cast<std::size_t>(entries[i].token * 2 + entries[i].k)],
              results.data() + i * 32);
    }
  }
  void add(const MoEExpected::Entry& entry, float weight, const std::byte* row) {
    std::byte* const sum = sums_.data() + entry.token * 32;
    for (int i = 0; i < 16; ++i)
      write_element(
          sum, DType::bfloat16, i,
          read_element(sum, DType::bfloat16, i) + double{weight} * read_element(row, DType::bfloat16, i));
  }

  static constexpr std::uint64_t round = 9;
  const MoEConfig config_ = make_config();
  const MoEBenchTokens tokens_{config_, ExpertChoice::uniform, 17};
  const MoEExpected expected_{config_, tokens_, round};
  std::vector<MoEExpected::Entry> entries_;
  std::vector<std::byte> rows_, scales_, sums_;
  std::vector<std::int32_t> counts_ = std::vector<std::int32_t>(3);
  std::vector<std::int64_t> first_rows_ = std::vector<std::int64_t>(4);
  MoERows out_;
};

TEST_F(MoEExpectedTest, WhatMustComeIsRight) {
  ASSERT_GT(entries_.size(), 2U);
  EXPECT_EQ(expected_.wrong_rows(out_).count, 0U) << expected_.wrong_rows(out_).first;
  EXPECT_EQ(expected_.wrong_sums(sums_.data()).count, 0U) << expected_.wrong_sums(sums_.data()).first;
}

TEST_F(MoEExpectedTest, ARowAScaleAndACountThatDifferAreFound) {
  rows_[33] ^= std::byte{1};
  EXPECT_EQ(expected_.wrong_rows(out_).count, 1U);
  EXPECT_EQ(expected_.wrong_rows(out_).first,
            fmt::format("row 1 is not token {} of rank {}, entry {}, for expert {}", entries_[1].token,
                        entries_[1].group, entries_[1].k, entries_[1].expert));
  scales_[0] ^= std::byte{1};
  EXPECT_EQ(expected_.wrong_rows(out_).count, 2U);
  ++counts_[2];
  EXPECT_EQ(expected_.wrong_rows(out_).count, 3U);
}

TEST_F(MoEExpectedTest, RowsThatAreSpoiltAreAllWrong) {
  expected_.spoil_rows(out_);
  EXPECT_EQ(expected_.wrong_rows(out_).count, entries_.size());
}

TEST_F(MoEExpectedTest, ASumThatDiffersIsFound) {
  sums_[2 * 32 + 5] ^= std::byte{0x10};
  EXPECT_EQ(expected_.wrong_sums(sums_.data()).count, 1U);
  EXPECT_EQ(expected_.wrong_sums(sums_.data()).first, "the sum of token 2 is wrong");
}

}  // namespace
}  // namespace headrace::cli
