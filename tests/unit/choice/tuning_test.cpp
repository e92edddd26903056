// SPDX-License-Identifier: Apache-2.0
#include "choice/tuning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace headrace::choice {
namespace {

using testing::HasSubstr;

const std::vector<std::string> both{"p2p", "nccl"};

std::string entry(const std::string& text) { return "{\"version\": 1, \"entries\": [" + text + "]}"; }

TEST(CommTuningText, comes_back_as_it_was) {
  const CommTuning tuning{"a",
                          {{.gpu = "NVIDIA H200",
                            .ranks = 2,
                            .sharing = false,
                            .operation = CommOperation::all_reduce,
                            .dtype_bytes = 4,
                            .up_to_bytes = 65'536,
                            .registered = false,
                            .backend = "p2p"},
                           {.backend = "nccl"}}};
  const auto read = parse_tuning(tuning_text(tuning), "a");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->entries, tuning.entries);
  EXPECT_EQ(read->from, "a");
  EXPECT_EQ(tuning_text({}), "{\n  \"version\": 1,\n  \"entries\": []\n}\n");
}

TEST(CommTuningText, says_where_it_is_wrong_and_what_is_expected) {
  const std::pair<std::string, const char*> wrong[] = {
      {"{\n\"version\": 1,\n\"entries\": [,]}", "at line 3"},
      {"", "t.json: parse error at line 1"},
      {"[]", "t.json is no object with \"version\" and \"entries\""},
      {"{}", "t.json has no \"version\": 1 is expected"},
      {"{\"version\": \"1\"}", "has no \"version\""},
      {"{\"version\": 0, \"entries\": []}", "has no \"version\""},
      {"{\"version\": 1}", "t.json has no list \"entries\""},
      {entry("7"), "t.json, entry 1 is no object"},
      {entry("{\"backend\": \"p2p\"}, {\"backnd\": \"p2p\"}"),
       "t.json, entry 2 has a \"backnd\": did you mean backend?"},
      {entry("{\"ranks\": 2}"), "entry 1: backend is missing, and one of p2p, nccl is expected"},
      {entry("{\"backend\": \"host\"}"), "backend is \"host\", and one of p2p, nccl is expected"},
      {entry("{\"backend\": \"p2p\", \"ranks\": 0}"),
       "ranks is 0, and a whole number from 1 to 4096 is expected"},
      {entry("{\"backend\": \"p2p\", \"up_to_bytes\": -1}"), "up_to_bytes is -1, and a whole number"},
      {entry("{\"backend\": \"p2p\", \"up_to_bytes\": 1.5}"), "up_to_bytes is 1.5, and a whole number"},
      {entry("{\"backend\": \"p2p\", \"sharing\": \"no\"}"),
       "sharing is \"no\", and true or false is expected"},
      {entry("{\"backend\": \"p2p\", \"operation\": \"allreduce\"}"), "did you mean all_reduce?"},
      {entry("{\"backend\": \"p2p\", \"operation\": \"send\"}"),
       "operation is \"send\", and one of all_reduce"},
      {std::string(most_text_bytes + 1, ' '), "a table has at most 1048576"}};
  for (const auto& [text, expected] : wrong) {
    const auto read = parse_tuning(text, "t.json");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.code(), Code::corrupt);
    EXPECT_THAT(read.error().message, HasSubstr(expected));
  }
}

TEST(CommTuningText, of_a_newer_version_is_refused) {
  const auto read = parse_tuning("{\"version\": 2, \"entries\": [{\"colour\": 1}]}", "t.json");
  EXPECT_EQ(read.code(), Code::not_supported);
  EXPECT_THAT(read.error().message, HasSubstr("t.json has version 2, and this Headrace reads 1"));
}

TEST(Choices, the_first_entry_that_holds_decides) {
  const CommTuning tuning{
      "a",
      {{.operation = CommOperation::barrier, .backend = "nccl"},
       {.gpu = "A",
        .ranks = 2,
        .sharing = false,
        .operation = CommOperation::all_reduce,
        .dtype_bytes = 2,
        .backend = "nccl"},
       {.ranks = 2, .operation = CommOperation::all_reduce, .up_to_bytes = 100, .backend = "nccl"},
       {.ranks = 2, .operation = CommOperation::all_reduce, .up_to_bytes = 1'000, .backend = "p2p"},
       {.ranks = 2, .operation = CommOperation::all_reduce, .backend = "nccl"}}};
  const Choices choices(tuning, {"A", 2, false}, both);
  EXPECT_EQ(choices.pick({CommOperation::barrier, 0, 0}), 1);
  EXPECT_EQ(choices.pick({CommOperation::all_reduce, 4, 100}), 1);
  EXPECT_EQ(choices.pick({CommOperation::all_reduce, 4, 101}), 0);
  EXPECT_EQ(choices.pick({CommOperation::all_reduce, 4, 1'001}), 1);
  EXPECT_EQ(choices.pick({CommOperation::all_reduce, 2, 101}), 1);
  EXPECT_EQ(choices.pick({CommOperation::broadcast, 4, 101}), 0);  // built in
  const Choices of_others(tuning, {"B", 2, true}, both);
  EXPECT_EQ(of_others.pick({CommOperation::all_reduce, 2, 101}), 0);
  const Choices of_more(tuning, {"A", 4, false}, both);
  EXPECT_EQ(of_more.pick({CommOperation::all_reduce, 4, 100}), 0);
}

TEST(Choices, built_in_entries_part_small_calls_from_large_ones) {
  constexpr std::uint64_t kib = 1 << 10, mib = 1 << 20;
  const auto of_ranks = [](int ranks) { return Choices({}, {"A", ranks, false}, both); };
  for (const int ranks : {2, 4}) {
    const Choices choices = of_ranks(ranks);
    EXPECT_EQ(choices.pick({CommOperation::all_to_all_single, 4, 1 * mib}), 0);
    EXPECT_EQ(choices.pick({CommOperation::all_to_all_single, 4, 1 * mib + 1}), 1);
    EXPECT_EQ(choices.pick({CommOperation::all_reduce, 4, 512 * kib}), 0);
    EXPECT_EQ(choices.pick({CommOperation::all_reduce, 4, 4 * mib}), 0);
    EXPECT_EQ(choices.pick({CommOperation::all_reduce, 4, 16 * mib + 1}), 1);
  }
  for (const std::uint64_t bytes : {1 * mib, 4 * mib + 1, 16 * mib}) {
    EXPECT_EQ(of_ranks(2).pick({CommOperation::all_reduce, 4, bytes}), 0);
    EXPECT_EQ(of_ranks(4).pick({CommOperation::all_reduce, 4, bytes}), 1);
  }
}

TEST(Choices, registered_tensors_have_entries_of_their_own) {
  constexpr std::uint64_t mib = 1 << 20;
  const Choices built_in({}, {"A", 4, false}, both);
  EXPECT_EQ(built_in.pick({CommOperation::all_reduce, 4, 16 * mib, true}), 0);
  EXPECT_EQ(built_in.pick({CommOperation::all_reduce, 4, 16 * mib + 1, true}), 1);
  EXPECT_EQ(built_in.pick({CommOperation::all_gather_single, 4, 8 * mib, true}), 0);
  EXPECT_EQ(built_in.pick({CommOperation::all_gather_single, 4, 8 * mib, false}), 1);
  const Choices measured({"a", {{.registered = false, .backend = "nccl"}}}, {"A", 4, false}, both);
  EXPECT_EQ(measured.pick({CommOperation::all_reduce, 4, 10, false}), 1);
  EXPECT_EQ(measured.pick({CommOperation::all_reduce, 4, 10, true}), 0);
}

TEST(Choices, an_entry_whose_backend_is_not_open_holds_for_nothing) {
  const Choices choices({"a", {{.backend = "nccl"}}}, {"A", 2, false}, {"p2p"});
  EXPECT_EQ(choices.pick({CommOperation::all_reduce, 4, 10}), 0);
  EXPECT_EQ(choices.pick({CommOperation::all_reduce, 4, 1 << 30}), std::nullopt);
}

TEST(Choices, messages_have_none) {
  EXPECT_EQ(Choices({}, {"A", 2, false}, both).pick({CommOperation::send, 4, 10}), std::nullopt);
}

}  // namespace
}  // namespace headrace::choice
