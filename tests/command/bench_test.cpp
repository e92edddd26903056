// SPDX-License-Identifier: Apache-2.0
// `headrace bench pages`: every mode runs, checks its data, and prints rows in the form of bench/results.
#include "command/command.hpp"

#include <gmock/gmock.h>
#include <sched.h>
#include <nlohmann/json.hpp>

#include <sstream>

namespace headrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::vector<Json> rows_of(const std::string& text) {
  std::vector<Json> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  return rows;
}

std::vector<std::string> cases_of(const std::vector<Json>& rows, const std::string& metric) {
  std::vector<std::string> names;
  for (const Json& row : rows)
    if (row.at("metric") == metric) names.push_back(row.at("case"));
  return names;
}

std::vector<Json> bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "pages", "--json", "--iterations", "2", "--warm-up", "1"});
  const Outcome outcome = run_command(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<Json> rows = rows_of(outcome.out);
  EXPECT_FALSE(rows.empty());
  for (const Json& row : rows) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : row.items()) keys.push_back(key);
    EXPECT_THAT(keys, ElementsAre("date", "commit", "machine", "command", "table", "case", "metric", "unit",
                                  "value", "peer", "peer_value", "ratio", "checked"));
    EXPECT_GT(row.at("value").get<double>(), 0);
    EXPECT_EQ(row.at("checked"), row.at("metric") != "make_us") << row;  // nothing moves while one is made
  }
  return rows;
}

TEST(CliBenchPages, PagesAreReadAndWrittenOverSharedMemory) {
  const auto rows = bench({"--backend", "shm", "--page", "4K,64K", "--total", "1M", "--op", "both"});
  EXPECT_THAT(cases_of(rows, "GB/s"),
              ElementsAre("read/4096x256", "read/65536x16", "write/4096x256", "write/65536x16"));
  EXPECT_EQ(rows.front().at("table"), "pages-cpu");
}

TEST(CliBenchPages, AllocatedMemoryHasCasesOfItsOwn) {
  EXPECT_THAT(
      cases_of(bench({"--backend", "shm", "--allocated", "--page", "4K", "--total", "1M", "--op", "both"}),
               "GB/s"),
      ElementsAre("allocated/read/4096x256", "allocated/write/4096x256"));
}

TEST(CliBenchPages, ThreadsAndRequestsInFlightShareThePages) {
  bench({"--backend", "shm", "--page", "4K", "--total", "1M", "--threads", "2", "--in-flight", "3",
         "--new-request", "--op", "both"});
  bench({"--backend", "shm", "--page", "4K", "--total", "64K", "--threads", "5", "--in-flight", "7",
         "--count", "3"});
}

TEST(CliBenchPages, RequestsPostedSeveralTimesCountAllTheirBytes) {
  const auto rows = bench({"--backend", "tcp", "--streams", "1", "--page", "4K", "--total", "1M",
                           "--in-flight", "2", "--posts", "3", "--op", "both"});
  EXPECT_THAT(cases_of(rows, "GB/s"), ElementsAre("4096/1/3-posts", "write/4096/1/3-posts"));
  const Outcome table = run_command({"bench", "pages", "--backend", "shm", "--page", "4K", "--total", "1M",
                                     "--iterations", "2", "--threads", "2", "--posts", "5"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("5.2 MB"));
  EXPECT_THAT(table.out, HasSubstr("5 times in a row"));
}

TEST(CliBenchPages, CasesOverTcpAreNamedByTheirStreams) {
  const auto rows = bench({"--backend", "tcp", "--streams", "2", "--page", "64K", "--total", "1M",
                           "--sequential", "--op", "both"});
  EXPECT_THAT(cases_of(rows, "GB/s"), ElementsAre("65536/2", "write/65536/2"));
  EXPECT_EQ(rows.front().at("table"), "tcp-cpu");
}

TEST(CliBenchPages, OnePageAtATimeGivesPercentiles) {
  for (const char* backend : {"shm", "tcp"}) {
    const auto rows = bench({"--backend", backend, "--single", "--page", "64,4K", "--total", "1M", "--op",
                             "both", "--iterations", "100"});
    EXPECT_THAT(cases_of(rows, "p50_us"),
                ElementsAre("single/64", "single/4096", "single/write/64", "single/write/4096"));
    EXPECT_THAT(cases_of(rows, "p99_us"),
                ElementsAre("single/64", "single/4096", "single/write/64", "single/write/4096"));
  }
}

TEST(CliBenchPages, NotificationsAreComparedWithABareRoundTrip) {
  const auto rows = bench({"--notifications", "--iterations", "50"});
  const auto cases = cases_of(rows, "p50_us");
  ASSERT_GE(cases.size(), 2U);
  EXPECT_EQ(cases[0], "notification/spinning");
  EXPECT_EQ(cases[1], "notification/asleep_one_core");
  cpu_set_t usable;
  CPU_ZERO(&usable);
  ASSERT_EQ(::sched_getaffinity(0, sizeof usable, &usable), 0);
  if (CPU_COUNT(&usable) > 1) {
    ASSERT_EQ(cases.size(), 3U);
    EXPECT_EQ(cases[2], "notification/asleep_two_cores");
  }
  const Json& asleep = rows.at(2);
  EXPECT_EQ(asleep.at("peer"), "eventfd ping-pong");
  EXPECT_NEAR(asleep.at("ratio").get<double>(),
              asleep.at("peer_value").get<double>() / asleep.at("value").get<double>(), 1e-9);
}

TEST(CliBenchPages, TheTableFitsTheTerminalAndExplainsThePath) {
  const Outcome outcome = run_command({"bench", "pages", "--page", "4K,64K", "--total", "1M", "--op", "both",
                                       "--iterations", "2", "--explain"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LE(widest_line(outcome.out), 120U) << outcome.out;
  for (const char* word : {"median", "mean", "min", "GB/s", "shm", "compared after each"})
    EXPECT_THAT(outcome.out, HasSubstr(word));
}

TEST(CliBenchPages, AnImpossibleOptionIsRefusedWithASentence) {
  const auto refused = [](std::vector<std::string> arguments, const char* text) {
    arguments.insert(arguments.begin(), {"bench", "pages"});
    const Outcome outcome = run_command(arguments);
    EXPECT_EQ(outcome.code, 1) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(text));
  };
  refused({"--page", "2M", "--total", "1M"}, "--total");
  refused({"--page", "12"}, "multiple of 8");
  refused({"--page", "4Q"}, "4Q");
  refused({"--page", "4K", "--total", "64K", "--count", "17"}, "--count");
  refused({"--backend", "pigeon", "--total", "1M"}, "pigeon");
  refused({"--kinds", "vram-vram", "--allocated"}, "--allocated");
}

TEST(CliBenchPages, AMissingGpuIsRefusedWithASentence) {
  const Outcome outcome =
      run_command({"bench", "pages", "--kinds", "vram-dram", "--devices", "999", "--total", "1M"});
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.err, testing::AnyOf(HasSubstr("NVIDIA"), HasSubstr("999")));
}

}  // namespace
}  // namespace headrace::test
