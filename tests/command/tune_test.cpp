// SPDX-License-Identifier: Apache-2.0
// `headrace tune` on a machine without GPUs, and the table of `auto` in `headrace doctor --collectives`.
#include "command/command.hpp"

#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace headrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using TuneJson = nlohmann::ordered_json;
using TuneWords = std::vector<std::string>;

TEST(CliTune, NamesTheWordThatItDoesNotKnow) {
  const std::pair<TuneWords, const char*> wrong[] = {
      {{"--backends", "host"}, "auto does not choose \"host\"; it chooses between p2p, nccl"},
      {{"--ops", "all_reduc"}, "did you mean all_reduce?"},
      {{"--ops", "put"}, "auto does not choose by a table for put"},
      {{"--bytes", "9-8"}, "the first size is at least 1 and at most the second"}};
  for (const auto& [arguments, expected] : wrong) {
    TuneWords words{"tune"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run_command(words);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr(expected));
  }
}

TEST(CliTune, SaysWhatItNeedsWhereThereIsNoGpu) {
  Command command({"CUDA_VISIBLE_DEVICES=", HEADRACE_COMMAND, "tune", "--dry-run"}, "/usr/bin/env");
  EXPECT_EQ(command.wait(), 1);
  EXPECT_THAT(command.err, AllOf(HasSubstr("there is no GPU here"), HasSubstr("libcuda.so.1")));
}

/// What the doctor says with this table; `file` is what its folder of configuration holds.
TuneJson tuning_found(const std::string& text) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() + "/headrace");
  if (!text.empty()) std::ofstream(folder.path() + "/headrace/collectives.json") << text;
  Command command({"XDG_CONFIG_HOME=" + folder.path(), HEADRACE_COMMAND, "doctor", "--collectives", "--json"},
                  "/usr/bin/env");
  EXPECT_EQ(command.wait(), 0) << command.err;
  return TuneJson::parse(command.out);
}

TEST(CliDoctor, TheCollectivesReportHasTheTableOfAuto) {
  const TuneJson built_in = tuning_found("");
  EXPECT_EQ(built_in.at("comm_tuning").at("from"), "built in");
  EXPECT_EQ(built_in.at("comm_tuning").at("entries").size(), 9U);
  const TuneJson of_file =
      tuning_found(R"({"version": 1, "entries": [{"operation": "barrier", "backend": "nccl"}]})");
  EXPECT_THAT(of_file.at("comm_tuning").at("from").get<std::string>(),
              testing::EndsWith("/headrace/collectives.json"));
  EXPECT_EQ(of_file.at("comm_tuning").at("entries"),
            TuneJson::parse(R"([{"operation": "barrier", "backend": "nccl"}])"));
  EXPECT_THAT(tuning_found("{").at("comm_tuning").at("error").get<std::string>(),
              HasSubstr("collectives.json: parse error at line 1"));
}

TEST(CliDoctor, TheTableOfAutoFitsTheTerminal) {
  const Outcome outcome = run_command({"doctor", "--collectives"});
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("table of auto"), HasSubstr("up to bytes"), HasSubstr("comm.tune")));
}

}  // namespace
}  // namespace headrace::test
