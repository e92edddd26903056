// SPDX-License-Identifier: Apache-2.0
// `headrace bench coll`: every operation runs as threads, as processes and under a launcher's variables, with
// its data checked.
#include "command/command.hpp"

#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <set>
#include <sstream>

namespace headrace::test {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

Words bench_coll(Words arguments) {
  arguments.insert(arguments.begin(), {"bench", "coll", "--iterations", "2"});
  return arguments;
}

std::vector<Json> figures(const Words& arguments) {
  Words words = bench_coll(arguments);
  words.emplace_back("--json");
  const Outcome outcome = run_command(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<Json> rows;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  EXPECT_FALSE(rows.empty());
  for (const Json& row : rows)  // no data moves in an abort
    EXPECT_EQ(row.at("checked"), row.at("case").get<std::string>().find("abort") == std::string::npos) << row;
  return rows;
}

std::set<std::string> cases_of(const std::vector<Json>& rows) {
  std::set<std::string> cases;
  for (const Json& row : rows) cases.insert(row.at("case"));
  return cases;
}

TEST(CliBenchColl, EveryOperationRunsBetweenThreadsAndItsDataIsRight) {
  const auto cases = cases_of(figures({"--ops", "all", "--bytes", "1,4K", "--ranks", "3"}));
  EXPECT_EQ(cases.size(), 2U * 22 + 2 /* barriers */ + 1 /* abort */ + 2 /* all_reduce in place */);
  for (const char* name :
       {"host/all_reduce/float32/sum/4/3/threads", "host/all_reduce/float32/sum/4/3/threads/in-place",
        "host/all_gather_single/float32/none/4092/3/threads", "host/barrier/float32/none/0/3/threads",
        "host/reduce_scatter_quantized/float32/sum/4092/3/threads", "host/put/float32/none/4096/3/threads"})
    EXPECT_TRUE(cases.contains(name)) << name << " is not in " << testing::PrintToString(cases);
}

TEST(CliBenchColl, EveryTypeAndReductionIsRight) {
  const auto cases = cases_of(figures({"--ops", "all_reduce,reduce_scatter_single", "--type", "all",
                                       "--redop", "all", "--bytes", "1K", "--ranks", "2"}));
  // 6 floats with 6 reductions, 8 integers with 9, bool with 7, 2 complex types with 4; all_reduce in place,
  // too.
  EXPECT_EQ(cases.size(), 3U * (6 * 6 + 8 * 9 + 7 + 2 * 4));
}

TEST(CliBenchColl, RanksAreProcesses) {
  const auto cases = cases_of(figures({"--ops", "all", "--bytes", "64", "--processes", "--ranks", "2"}));
  EXPECT_TRUE(cases.contains("host/send_recv/float32/none/64/2/processes"));
}

TEST(CliBenchColl, MemoryOfEveryOperationMayBeRegistered) {
  const auto cases = cases_of(figures({"--ops", "all", "--bytes", "64", "--registered"}));
  EXPECT_TRUE(cases.contains("host/all_reduce/float32/sum/64/2/threads/registered"));
  EXPECT_TRUE(cases.contains("host/all_reduce/float32/sum/64/2/threads/registered/in-place"));
}

TEST(CliBenchColl, OneRankRunsWhatNeedsNoOther) {
  const Outcome outcome = run_command(bench_coll({"--ops", "all", "--bytes", "64", "--ranks", "1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("not run with float32: it needs another rank"));
}

TEST(CliBenchColl, UnderALauncherRankZeroAlonePrints) {
  const TemporaryFolder folder;
  const auto rank = [&](const std::string& number) {
    Words words{"RANK=" + number, "WORLD_SIZE=2", HEADRACE_COMMAND};
    for (const std::string& word : bench_coll({"--bytes", "64", "--meeting", "file://" + folder.path()}))
      words.push_back(word);
    return words;
  };
  Command zero(rank("0"), "/usr/bin/env"), one(rank("1"), "/usr/bin/env");
  EXPECT_EQ(zero.wait(), 0) << zero.err;
  EXPECT_EQ(one.wait(), 0) << one.err;
  EXPECT_THAT(zero.out, HasSubstr("2 ranks as processes, backend host"));
  EXPECT_EQ(one.out, "");
}

TEST(CliBenchColl, ALauncherWithoutAMeetingPlaceIsToldWhatToGive) {
  Words words{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", HEADRACE_COMMAND, "bench", "coll"};
  Command command(words, "/usr/bin/env");
  EXPECT_EQ(command.wait(), 1);
  EXPECT_THAT(command.err, HasSubstr("rank 0 of 2"));
  EXPECT_THAT(command.err, HasSubstr("--meeting"));
}

TEST(CliBenchColl, TheTableHasTheColumnsOfNcclTestsAndFitsTheTerminal) {
  const Outcome outcome =
      run_command(bench_coll({"--ops", "all_reduce,broadcast", "--bytes", "8-512", "--root", "1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LE(widest_line(outcome.out), 120U) << outcome.out;
  for (const char* text : {"out-of-place", "in-place", "algbw", "busbw", "#wrong", "(elements)",
                           "# all_reduce\n", "# broadcast\n", "all data compared"})
    EXPECT_THAT(outcome.out, HasSubstr(text));
  std::istringstream lines(outcome.out);
  std::vector<Words> rows;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    rows.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
  }
  ASSERT_EQ(rows.size(), 6U);  // 8, 64 and 512 bytes of two operations
  EXPECT_THAT(rows[0], testing::ElementsAre("8", "2", "float32", "sum", "-1", testing::_, testing::_,
                                            testing::_, "0", testing::_, testing::_, testing::_, "0"));
  EXPECT_THAT(rows[5], testing::ElementsAre("512", "128", "float32", "none", "1", "-", "-", "-", "-",
                                            testing::_, testing::_, testing::_, "0"));
}

TEST(CliBenchColl, TheFakeBackendIsNotChecked) {
  const Outcome outcome = run_command(bench_coll({"--backend", "fake", "--bytes", "8"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("no data compared"));
  EXPECT_THAT(outcome.out, HasSubstr("N/A"));
}

TEST(CliBenchColl, WrongElementsAreCountedAndAreAFailure) {
  const std::string library = HEADRACE_TEST_BIN_DIR "/plugins/libheadrace_comm_idle.so";
  Command command({"HEADRACE_COMM_LIB_IDLE=" + library, HEADRACE_COMMAND, "bench", "coll", "--iterations",
                   "2", "--backend", "idle", "--ops", "all_reduce,put", "--bytes", "64"},
                  "/usr/bin/env");
  EXPECT_EQ(command.wait(), 1);
  EXPECT_THAT(command.out, HasSubstr("backend idle 1.0"));
  EXPECT_THAT(command.out, HasSubstr("64         16       float32        sum   -1"));
  // 16 elements of two ranks, in place and not, before the measurement and after it.
  EXPECT_THAT(command.err, HasSubstr("128 elements were wrong: see the rows above, column #wrong"));
  EXPECT_THAT(command.out, HasSubstr("not run with float32: backend idle has no windows"));
}

TEST(CliBenchColl, WhatCannotBeMeasuredIsRefusedWithASentence) {
  for (const auto& [arguments, text] : std::vector<std::pair<Words, const char*>>{
           {{"--ops", "allreduce"}, "did you mean all_reduce?"},
           {{"--type", "float"}, "--type: there is no \"float\""},
           {{"--redop", "mean"}, "--redop: there is no \"mean\""},
           {{"--type", "float32", "--redop", "bxor"}, "all_reduce takes no float32 with bxor"},
           {{"--bytes", "64-8"}, "--bytes 64-8"},
           {{"--root", "2"}, "--root 2: there are 2 ranks"},
           {{"--backend", "hosts"}, "did you mean host?"},
           {{"--hint", "lane_byte=1MiB"}, "lane_bytes"},
           {{"--hint", "lane_bytes"}, "name=value"},
           {{"--graph"}, "--device cuda"},
           {{"--meeting", "file:///tmp"}, "none has started this process"},
           {{"--option", "tcp.sockets=2"}, "--hint NAME=VALUE"},
           {{"--device", "cuda:999"}, "cuda"}}) {
    const Outcome outcome = run_command(bench_coll(arguments));
    EXPECT_EQ(outcome.code, 1) << testing::PrintToString(arguments) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(text)) << testing::PrintToString(arguments);
  }
}

TEST(CliBenchColl, AProcessThatFailsIsNamed) {
  const Outcome outcome = run_command(bench_coll({"--backend", "hosts", "--processes", "--ranks", "2"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 ended with exit code 1, rank 1 ended with exit code 1"));
}

}  // namespace
}  // namespace headrace::test
