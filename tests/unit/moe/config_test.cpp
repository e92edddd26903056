// SPDX-License-Identifier: Apache-2.0
#include "moe/config.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace headrace::moe {
namespace {

MoEConfig small_config() {
  MoEConfig config;
  config.ranks = 3;
  config.experts = 8;
  config.top_k = 2;
  config.hidden = 16;
  config.max_tokens = 40;
  return config;
}

TEST(MoEConfigCheck, one_that_is_right_is_taken) { EXPECT_TRUE(small_config().check()); }

struct Wrong {
  std::function<void(MoEConfig&)> change;
  std::string_view sentence;
};

TEST(MoEConfigCheck, each_wrong_field_is_refused_with_its_value_and_what_was_expected) {
  const Wrong all[] = {
      {[](MoEConfig& c) { c.ranks = 65; }, "ranks is 65, expected 1 to 64"},
      {[](MoEConfig& c) { c.rank = 3; }, "rank is 3, expected 0 to 2"},
      {[](MoEConfig& c) { c.group_size = 2; },
       "group_size is 2 and ranks is 3: give a group_size that divides ranks"},
      {[](MoEConfig& c) { c.experts = 4097; }, "experts is 4097, expected 1 to 4096"},
      {[](MoEConfig& c) { c.top_k = 33; }, "top_k is 33, expected 1 to 32"},
      {[](MoEConfig& c) { c.top_k = 9; }, "top_k is 9, expected at most experts = 8"},
      {[](MoEConfig& c) {
         c.experts_of_ranks = {4, 4};
       },
       "experts_of_ranks has 2 numbers, expected one for each of 3 ranks"},
      {[](MoEConfig& c) {
         c.experts_of_ranks = {4, -1, 5};
       },
       "experts_of_ranks[1] is -1, expected 0 to 8"},
      {[](MoEConfig& c) {
         c.experts_of_ranks = {4, 0, 5};
       },
       "the sum of experts_of_ranks is 9, expected experts = 8"},
      {[](MoEConfig& c) { c.hidden = 0; }, "hidden is 0, expected 1 to 16777216"},
      {[](MoEConfig& c) { c.hidden = 12; },
       "hidden is 12, a row of bfloat16 has 24 bytes (dtype): expected a multiple of 16, at most 16777216"},
      {[](MoEConfig& c) { c.dtype = DType::float32, c.hidden = 12; },
       "hidden is 12, a row of bfloat16 has 24 bytes (combine_dtype): expected a multiple of 16, at most "
       "16777216"},
      {[](MoEConfig& c) { c.device = -2; }, "device is -2, expected the number of a GPU, or -1"},
      {[](MoEConfig& c) { c.device = 0, c.blocks = 129; }, "blocks is 129, expected 0 to 128"},
      {[](MoEConfig& c) { c.blocks = 4; },
       "blocks is 4, and device is -1: give the device whose blocks they are, or leave blocks at 0"},
      {[](MoEConfig& c) { c.combine_dtype = DType::float8_e4m3fn; },
       "combine_dtype is float8_e4m3fn, expected float32, float16 or bfloat16"},
      {[](MoEConfig& c) { c.scale_bytes = 6; }, "scale_bytes is 6, expected a multiple of 4"},
      {[](MoEConfig& c) { c.payload_bytes.assign(9, 4); },
       "the number of payload_bytes is 9, expected 0 to 8"},
      {[](MoEConfig& c) {
         c.payload_bytes = {4, 0};
       },
       "payload_bytes[1] is 0, expected 1 to 1048576"},
      {[](MoEConfig& c) { c.float8_combine = true, c.hidden = 24; },
       "hidden is 24, expected a multiple of 16 for float8_combine"},
      {[](MoEConfig& c) { c.max_tokens = 0; }, "max_tokens is 0, expected 1 to 1048576"},
      {[](MoEConfig& c) { c.row_alignment = 0; }, "row_alignment is 0, expected 1 to 65536"},
      {[](MoEConfig& c) { c.layout = MoELayout::batched, c.row_alignment = 8; },
       "layout is batched, which has no padding: leave row_alignment at 1 and zero_padding off"},
      {[](MoEConfig& c) { c.row_budget = -1; }, "row_budget is -1, expected 0 to 2147483648"},
      {[](MoEConfig& c) { c.wait_limit = {}; },
       "wait_limit (in nanoseconds) is 0, expected 1 to 86400000000000"},
      {[](MoEConfig& c) { c.name = "a\nb"; },
       "name is \"a\\x0ab\", expected 1 to 200 bytes without control characters"},
  };
  for (const Wrong& wrong : all) {
    MoEConfig config = small_config();
    wrong.change(config);
    const auto checked = config.check();
    ASSERT_FALSE(checked) << wrong.sentence;
    EXPECT_EQ(checked.code(), Code::invalid_argument);
    EXPECT_EQ(checked.error().message, wrong.sentence);
    EXPECT_EQ(config.window_bytes().code(), Code::invalid_argument);
  }
}

TEST(MoEConfigExperts, are_spread_evenly_the_first_ranks_have_one_more) {
  const MoEConfig config = small_config();
  EXPECT_EQ(config.first_expert(0), 0);
  EXPECT_EQ(config.first_expert(1), 3);
  EXPECT_EQ(config.first_expert(2), 6);
  EXPECT_EQ(config.first_expert(3), 8);
  EXPECT_EQ(config.local_experts(2), 2);
}

TEST(MoEConfigExperts, are_spread_as_the_caller_says) {
  MoEConfig config = small_config();
  config.experts_of_ranks = {5, 0, 3};
  EXPECT_EQ(config.first_expert(1), 5);
  EXPECT_EQ(config.first_expert(2), 5);
  EXPECT_EQ(config.local_experts(1), 0);
  EXPECT_EQ(config.local_experts(2), 3);
}

TEST(MoEConfigRows, the_most_that_can_come_is_aligned_for_each_expert) {
  MoEConfig config = small_config();  // 3 groups of 40 tokens, two rows each on 3 experts
  EXPECT_EQ(config.output_rows(), 240);
  config.row_alignment = 16;
  EXPECT_EQ(config.output_rows(), 288);  // 240 + 3 * 15 = 285, up to the next 16
  config.row_budget = 100;
  EXPECT_EQ(config.output_rows(), 100);
}

TEST(MoEConfigRows, of_other_layouts) {
  MoEConfig config = small_config();
  config.layout = MoELayout::batched;
  EXPECT_EQ(config.output_rows(), 3 * 120);
  config.row_budget = 50;
  EXPECT_EQ(config.output_rows(), 3 * 50);
  config.layout = MoELayout::by_rank;
  config.row_budget = 0;
  EXPECT_EQ(config.output_rows(), 120);
}

TEST(MoEConfigRows, tokens_of_a_group_come_once) {
  MoEConfig config = small_config();
  config.ranks = 4, config.group_size = 2, config.layout = MoELayout::by_rank;
  EXPECT_EQ(config.output_rows(), 80);
}

TEST(MoEConfigText, of_other_ranks_may_differ_in_the_rank_alone) {
  MoEConfig other = small_config();
  other.rank = 1;
  EXPECT_TRUE(compare_configs(0, config_text(small_config()), 1, config_text(other)));
  other.experts_of_ranks = {3, 3, 2};
  const auto differs = compare_configs(0, config_text(small_config()), 1, config_text(other));
  EXPECT_EQ(differs.code(), Code::invalid_argument);
  EXPECT_EQ(differs.error().message,
            "rank 0 has experts_of_ranks even, rank 1 has 3,3,2: give all ranks the same configuration");
}

TEST(MoEConfigText, says_whose_window_it_is) {
  MoEConfig config = small_config();
  config.rank = 2;
  EXPECT_TRUE(compare_configs(0, config_text(small_config()), 2, window_text(config)));
  EXPECT_TRUE(check_window_rank(2, window_text(config)));
  const auto other = check_window_rank(1, window_text(config));
  EXPECT_EQ(other.code(), Code::invalid_argument);
  EXPECT_EQ(
      other.error().message,
      "it is rank 2, and is given as the agent of rank 1: give the agents in the order of the ranks, the "
      "same list on all ranks");
  EXPECT_EQ(check_window_rank(2, config_text(config)).code(), Code::corrupt);
}

TEST(MoEConfigText, of_a_list_of_agents_is_a_number) {
  const std::vector<std::string> list{"a", "b"}, same{"a", "b"}, order{"b", "a"}, joined{"ab", ""};
  EXPECT_EQ(number_of_list(list), number_of_list(same));
  EXPECT_NE(number_of_list(list), number_of_list(order));
  EXPECT_NE(number_of_list(list), number_of_list(joined));
  EXPECT_NE(number_of_list({}), 0U);
}

TEST(MoEConfigText, that_cannot_be_read_is_corrupt) {
  const auto differs = compare_configs(0, config_text(small_config()), 2, "ranks 3\nno");
  EXPECT_EQ(differs.code(), Code::corrupt);
  EXPECT_EQ(differs.error().message, "rank 2 has no configuration that can be read: group_size is missing");
}

TEST(MoEConfigText, of_the_longest_configuration_fits_into_a_window) {
  MoEConfig config = small_config();
  config.ranks = moe_most_ranks, config.experts = moe_most_experts;
  config.experts_of_ranks.assign(moe_most_ranks, 64);
  config.experts_of_ranks[0] = 1000;
  EXPECT_LT(window_text(config).size(), WindowLayout::config_bytes);
}

}  // namespace
}  // namespace headrace::moe
