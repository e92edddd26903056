// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/collectives_survey.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace::cli {
namespace {

using testing::HasSubstr;
using State = Finding::State;

TEST(collectives_survey, each_launcher_that_has_set_something_is_shown_and_the_rank_that_counts) {
  const std::vector<LauncherVariables> launchers{{"torchrun", "RANK", "WORLD_SIZE", "1", "4"},
                                                 {"PMI", "PMI_RANK", "PMI_SIZE", {}, {}},
                                                 {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "0", {}}};
  CommOptions launched;
  launched.rank = 1;
  launched.size = 4;
  launched.meeting = "tcp://10.0.0.1:29500";
  const auto findings = survey_launchers(launchers, launched);
  ASSERT_EQ(findings.size(), 3U);
  EXPECT_EQ(findings[0].value, "RANK=1, WORLD_SIZE=4");
  EXPECT_EQ(findings[1].value, "SLURM_PROCID=0, SLURM_NTASKS=(not set)");
  EXPECT_EQ(findings[2].state, State::good);
  EXPECT_THAT(findings[2].value, HasSubstr("rank 1 of 4"));
  EXPECT_THAT(findings[2].value, HasSubstr("tcp://10.0.0.1:29500"));
}

TEST(collectives_survey, what_the_variables_lack_is_said_with_advice) {
  CommOptions launched;
  launched.size = 2;
  const auto nowhere = survey_launchers({}, launched);
  EXPECT_THAT(nowhere.back().value, HasSubstr("no place where the ranks meet"));
  EXPECT_THAT(nowhere.back().advice, HasSubstr("MASTER_ADDR"));
  const auto half =
      survey_launchers({}, Error{Code::invalid_argument, "the environment has RANK and not WORLD_SIZE"});
  EXPECT_EQ(half.back().state, State::warning);
  EXPECT_THAT(half.back().value, HasSubstr("RANK and not WORLD_SIZE"));
  const auto none = survey_launchers({}, Error{Code::not_found, "no launcher"});
  EXPECT_EQ(none.back().state, State::note);
}

TEST(collectives_survey, a_backend_that_cannot_be_used_says_why) {
  const Finding without = finding_of({"nccl", "", "", {"cuda"}, {}, "no nccl: install it"});
  EXPECT_EQ(without.state, State::note);
  EXPECT_EQ(without.value, "cannot be used");
  EXPECT_EQ(without.advice, "no nccl: install it");
  const Finding no_driver =
      finding_of({"nccl", "2.28.9", "/lib/libnccl.so.2", {"cuda"}, {"split", "float8"}, "no driver"});
  EXPECT_EQ(no_driver.value, "2.28.9, /lib/libnccl.so.2; memory of cuda; split, float8");
  EXPECT_EQ(no_driver.advice, "no driver");
  EXPECT_EQ(finding_of({"host", "0.1.0", "linked in", {"cpu"}, {"split"}, ""}).state, State::good);
}

TEST(collectives_survey, a_python_that_cannot_answer_is_named) {
  const auto missing = survey_torch("/nowhere/python");
  EXPECT_THAT(missing.at(0).value, HasSubstr("/nowhere/python cannot be started"));
  EXPECT_THAT(missing.at(0).advice, HasSubstr("--option python=PATH"));
  const auto fails = survey_torch("/bin/false");
  EXPECT_THAT(fails.at(0).value, HasSubstr("ended with exit code 1"));
  EXPECT_THAT(fails.at(0).advice, HasSubstr("install the package"));
  EXPECT_THAT(survey_torch("/bin/echo").at(0).value, HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace headrace::cli
