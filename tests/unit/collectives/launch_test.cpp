// SPDX-License-Identifier: Apache-2.0
// Rank, size and meeting place from the variables of launchers.
#include "collectives/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>

namespace headrace::collectives {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Lookup lookup_of(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}
Result<CommOptions> options_of(Variables variables) {
  return launched_options(lookup_of(std::move(variables)));
}

TEST(Launch, each_launcher_has_a_pair_of_variables) {
  for (const auto& [rank, size] :
       std::map<std::string, std::string>{{"HEADRACE_RANK", "HEADRACE_SIZE"},
                                          {"RANK", "WORLD_SIZE"},
                                          {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                          {"PALS_RANKID", "PMI_SIZE"},
                                          {"PMI_RANK", "PMI_SIZE"},
                                          {"SLURM_PROCID", "SLURM_NTASKS"}}) {
    const auto options = options_of({{rank, "2"}, {size, "5"}});
    ASSERT_TRUE(options.ok()) << rank << ": " << options.error().message;
    EXPECT_EQ(options->rank, 2) << rank;
    EXPECT_EQ(options->size, 5) << rank;
    EXPECT_EQ(options->meeting, "");
  }
}

TEST(Launch, the_launcher_that_starts_the_process_last_counts) {
  const auto options = options_of({{"SLURM_PROCID", "0"},
                                   {"SLURM_NTASKS", "1"},
                                   {"RANK", "3"},
                                   {"WORLD_SIZE", "4"},
                                   {"MASTER_ADDR", "first.example"},
                                   {"MASTER_PORT", "29500"}});
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->rank, 3);
  EXPECT_EQ(options->size, 4);
  EXPECT_EQ(options->meeting, "tcp://first.example:29500");
}

TEST(Launch, half_a_pair_is_refused_by_the_name_of_the_other_half) {
  const auto no_size = options_of({{"RANK", "0"}});
  ASSERT_EQ(no_size.code(), Code::invalid_argument);
  EXPECT_THAT(no_size.error().message, HasSubstr("has RANK and not WORLD_SIZE: set both"));
  EXPECT_THAT(options_of({{"SLURM_NTASKS", "4"}}).error().message,
              HasSubstr("has SLURM_NTASKS and not SLURM_PROCID"));
  EXPECT_THAT(options_of({{"PALS_RANKID", "4"}}).error().message,
              HasSubstr("has PALS_RANKID and not PMI_SIZE"));
  EXPECT_THAT(options_of({{"PMI_SIZE", "4"}}).error().message, HasSubstr("has PMI_SIZE and not PMI_RANK"));
  EXPECT_THAT(options_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}).error().message,
              HasSubstr("has MASTER_ADDR and not MASTER_PORT"));
}

TEST(Launch, one_rank_needs_no_meeting_place) {
  const auto options = options_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}});
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->meeting, "");
}

TEST(Launch, a_value_that_is_no_number_is_named) {
  for (const char* text : {"one", "1.5", "2x", "99999999999"}) {
    const auto options = options_of({{"RANK", text}, {"WORLD_SIZE", "2"}});
    ASSERT_EQ(options.code(), Code::invalid_argument) << text;
    EXPECT_THAT(options.error().message,
                AllOf(HasSubstr("RANK"), HasSubstr(text), HasSubstr("whole number")));
  }
}

TEST(Launch, without_a_launcher_the_error_lists_what_was_looked_for) {
  const auto options = options_of({{"RANK", ""}, {"PATH", "/bin"}});
  ASSERT_EQ(options.code(), Code::not_found);
  EXPECT_THAT(options.error().message,
              AllOf(HasSubstr("HEADRACE_RANK and HEADRACE_SIZE;"), HasSubstr("RANK and WORLD_SIZE"),
                    HasSubstr("PALS_RANKID and PMI_SIZE"), HasSubstr("SLURM_PROCID and SLURM_NTASKS")));
}

TEST(Launch, an_address_with_colons_is_put_in_brackets) {
  EXPECT_EQ(launched_meeting(lookup_of({{"MASTER_ADDR", "::1"}, {"MASTER_PORT", "7"}})).value(),
            "tcp://[::1]:7");
  EXPECT_EQ(launched_meeting(lookup_of({{"MASTER_ADDR", "[::1]"}, {"MASTER_PORT", "7"}})).value(),
            "tcp://[::1]:7");
}

TEST(Launch, the_port_of_torchruns_own_store_is_no_meeting_place) {
  const Variables variables{
      {"MASTER_ADDR", "a"}, {"MASTER_PORT", "7"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_EQ(launched_meeting(lookup_of(variables)).value(), "");
}

TEST(Launch, the_variables_of_each_launcher_are_listed_with_what_is_set) {
  ::setenv("SLURM_PROCID", "3", 1);
  const auto all = list_launcher_variables();
  ::unsetenv("SLURM_PROCID");
  ASSERT_EQ(all.size(), 6U);
  EXPECT_EQ(all.front().rank_name, "HEADRACE_RANK");
  EXPECT_EQ(all[1].launcher, "torchrun");
  EXPECT_EQ(all.back().launcher, "Slurm");
  EXPECT_EQ(all.back().rank, "3");
  EXPECT_EQ(all.back().size, std::nullopt);
}

}  // namespace
}  // namespace headrace::collectives
