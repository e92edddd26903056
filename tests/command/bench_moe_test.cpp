// SPDX-License-Identifier: Apache-2.0
// `headrace bench moe`: ranks as threads, as processes, under a launcher and as several commands, with all
// rows and sums compared.
#include "command/command.hpp"

#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

namespace headrace::test {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

Words bench_moe(const Words& more) {
  Words words{"bench",     "moe", "--warm-up", "1", "--repeats", "2",
              "--experts", "10",  "--top-k",   "3", "--hidden",  "256"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The metrics of each case.
using Figures = std::map<std::string, std::map<std::string, Json>>;

Figures figures_of(const std::string& text) {
  Figures figures;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    EXPECT_EQ(row.at("table"), "moe");
    EXPECT_EQ(row.at("checked"), true) << row;
    EXPECT_GT(row.at("value").get<double>(), 0) << row;
    figures[row.at("case")][row.at("metric")] = row;
  }
  return figures;
}

Figures figures_by(Words words) {
  words.insert(words.end(), {"--check", "--json"});
  const Outcome outcome = run_command(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return figures_of(outcome.out);
}

Figures moe_figures(const Words& more) { return figures_by(bench_moe(more)); }

TEST(CliBenchMoE, EachOperationIsMeasuredAndItsRowsAndSumsAreRight) {
  const Figures got = moe_figures({"--tokens", "1,40", "--routing", "all", "--ranks", "3"});
  EXPECT_EQ(got.size(), 2U * 4 * 7);
  for (const char* name : {"dispatch/1x256/10/3/float8_e4m3fn-bfloat16/uniform/3/threads",
                           "dispatch-send/40x256/10/3/float8_e4m3fn-bfloat16/zipf/3/threads",
                           "combine-receive/40x256/10/3/float8_e4m3fn-bfloat16/k-hot/3/threads",
                           "round-trip/40x256/10/3/float8_e4m3fn-bfloat16/masked/3/threads"})
    EXPECT_TRUE(got.contains(name)) << name;
  const auto& dispatch = got.at("dispatch/40x256/10/3/float8_e4m3fn-bfloat16/uniform/3/threads");
  for (const char* metric : {"mean_us", "p1_us", "p50_us", "p99_us", "host_us", "moved", "entries"})
    EXPECT_TRUE(dispatch.contains(metric)) << metric;
  // A row goes once to a rank, and none leaves for its own.
  EXPECT_LT(dispatch.at("moved").at("value"), dispatch.at("entries").at("value"));
}

TEST(CliBenchMoE, GroupsAndTypesAreRight) {
  const auto got = moe_figures({"--tokens", "17", "--ranks", "4", "--group-size", "2", "--type", "float16",
                                "--scales", "3", "--scale-type", "float32", "--combine-type", "float32"});
  EXPECT_TRUE(got.contains("combine/17x256/10/3/float16-float32/uniform/4/threads"));
}

TEST(CliBenchMoE, RanksAreProcessesAndRowsGoToAFile) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/rows.jsonl";
  const Outcome outcome =
      run_command(bench_moe({"--processes", "--tokens", "9", "--check", "--output", file}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 ranks as processes"));
  std::ifstream rows(file);
  const Figures got = figures_of({std::istreambuf_iterator<char>(rows), {}});
  EXPECT_TRUE(got.contains("dispatch/9x256/10/3/float8_e4m3fn-bfloat16/uniform/2/processes"));
}

TEST(CliBenchMoE, NamesOfPplxGardenAreAliases) {
  const Figures got = figures_by({"bench",
                                  "moe",
                                  "--world-size",
                                  "2",
                                  "--max-num-tokens",
                                  "5",
                                  "--max-private-tokens",
                                  "256",
                                  "--num-experts",
                                  "8",
                                  "--num-experts-per-token",
                                  "2",
                                  "--hidden-dim",
                                  "128",
                                  "--hidden-dim-scale",
                                  "2",
                                  "--in-dtype",
                                  "float8_e5m2",
                                  "--scale-dtype",
                                  "float32",
                                  "--out-dtype",
                                  "float16",
                                  "--dp-size",
                                  "1",
                                  "--num-warmup",
                                  "1",
                                  "--num-repeats",
                                  "1"});
  EXPECT_TRUE(got.contains("dispatch/5x128/8/2/float8_e5m2-float16/uniform/2/threads"));
}

TEST(CliBenchMoE, CopiesOfTheSameRowsAreMeasuredBesideIt) {
  const auto got = moe_figures({"--copies", "--tokens", "30"});
  const std::string shape = "/30x256/10/3/float8_e4m3fn-bfloat16/uniform/2/threads";
  for (const char* phase : {"dispatch", "combine", "round-trip"}) {
    const Json& row = got.at(phase + shape).at("p50_us");
    EXPECT_EQ(row.at("peer"), "memcpy of the same rows");
    EXPECT_GT(row.at("ratio").get<double>(), 0);
    EXPECT_TRUE(got.contains(std::string("copy-") + phase + shape));
  }
}

TEST(CliBenchMoE, RowsGoOverANetworkBetweenNodes) {
  const auto got = moe_figures({"--ranks", "3", "--nvlink", "2", "--nics", "127.0.0.1", "--tokens", "20"});
  EXPECT_TRUE(got.contains("dispatch/20x256/10/3/float8_e4m3fn-bfloat16/uniform/3/threads/nodes-of-2"));
}

TEST(CliBenchMoE, SeveralCommandsMeet) {
  const TemporaryFolder folder;
  const auto node = [&](const char* number) {
    return bench_moe({"--world-size", "3", "--local-ranks", number == std::string("0") ? "2" : "1",
                      "--node-rank", number == std::string("0") ? "0" : "2", "--init-method",
                      "file://" + folder.path(), "--check", "--tokens", "8"});
  };
  Command zero(node("0")), one(node("1"));
  EXPECT_EQ(zero.wait(), 0) << zero.err;
  EXPECT_EQ(one.wait(), 0) << one.err;
  EXPECT_THAT(zero.out, HasSubstr("round-trip"));
  EXPECT_EQ(one.out, "");
}

TEST(CliBenchMoE, UnderALauncherRankZeroAlonePrints) {
  const TemporaryFolder folder;
  const auto rank = [&](const std::string& number) {
    Words words{"RANK=" + number, "WORLD_SIZE=2", HEADRACE_COMMAND};
    for (const std::string& word : bench_moe({"--tokens", "8", "--meeting", "file://" + folder.path()}))
      words.push_back(word);
    return words;
  };
  Command zero(rank("0"), "/usr/bin/env"), one(rank("1"), "/usr/bin/env");
  EXPECT_EQ(zero.wait(), 0) << zero.err;
  EXPECT_EQ(one.wait(), 0) << one.err;
  EXPECT_THAT(zero.out, HasSubstr("2 ranks as processes"));
  EXPECT_EQ(one.out, "");
}

TEST(CliBenchMoE, TheTableFitsTheTerminal) {
  const Outcome outcome = run_command(bench_moe({"--tokens", "8,100", "--copies"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LE(widest_line(outcome.out), 120U) << outcome.out;
  for (const char* text :
       {"2 ranks as threads, 10 experts, top 3, rows of 256 float8_e4m3fn with 8 bytes of scales",
        "all rows and sums of the first and the last round compared", "# 8 tokens, uniform, 2 rounds", "p99",
        "GB/s moved", "copy-round-trip"})
    EXPECT_THAT(outcome.out, HasSubstr(text));
}

TEST(CliBenchMoE, WhatCannotBeMeasuredIsRefusedWithASentence) {
  for (const auto& [arguments, text] : std::vector<std::pair<Words, const char*>>{
           {{"--routing", "random"}, "--routing: there is no \"random\""},
           {{"--tokens", "0"}, "--tokens 0: each is a whole number from 1"},
           {{"--tokens", "8,"}, "--tokens 8,"},
           {{"--type", "fp8"}, "--type"},
           {{"--combine-type", "int8"}, "combine_dtype"},
           {{"--experts", "4"}, "top_k is 8"},
           {{"--hidden", "10"}, "hidden"},
           {{"--group-size", "3"}, "group_size is 3"},
           {{"--check", "--no-check"}, "leave one out"},
           {{"--device", "cuda:999"}, "cuda"},
           {{"--graph"}, "give --device cuda"},
           {{"--copies", "--device", "cuda"}, "--copies is for host memory"},
           {{"--blocks", "8"}, "blocks is 8, and device is -1"},
           {{"--nvlink", "3"}, "ranks_per_node is 3"},
           {{"--nvlink", "1", "--nics", "nothing0"}, "nothing0"},
           {{"--nets-per-gpu", "2"}, "--nets-per-gpu 2"},
           {{"--max-private-tokens", "127"}, "--private-tokens 127: each token of a rank has a slot"},
           {{"--private-tokens", "128", "--tokens", "8,129"}, "give 129 or more"},
           {{"--init-method", "file:///tmp"}, "--local-ranks"},
           {{"--node-rank", "1"}, "--local-ranks"},
           {{"--ranks", "2", "--local-ranks", "2", "--node-rank", "1", "--init-method", "file:///tmp"},
            "ranks 2 to 3, and there are 2"},
           {{"--processes", "--copies"}, "--copies"},
           {{"--output", "/nowhere/rows.jsonl"}, "--output /nowhere/rows.jsonl: No such file"},
           {{"--option", "tcp.socket=2"}, "did you mean \"sockets\"?"}}) {
    Words words{"bench", "moe"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run_command(words);
    EXPECT_EQ(outcome.code, 1) << testing::PrintToString(arguments) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(text)) << testing::PrintToString(arguments);
  }
}

}  // namespace
}  // namespace headrace::test
