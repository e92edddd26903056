// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_row.hpp"

#include <gmock/gmock.h>

namespace headrace::cli {
namespace {

TEST(Summaries, APercentileIsOneOfTheSamples) {
  const Summary summary({5, 1, 4, 2, 3});
  EXPECT_EQ(summary.median(), 3);
  EXPECT_EQ(summary.percentile(99), 5);
  EXPECT_EQ(summary.percentile(0), 1);
  EXPECT_EQ(summary.least, 1);
  EXPECT_DOUBLE_EQ(summary.mean, 3);
}

TEST(Rows, ARowHasTheKeysOfBenchResults) {
  const RowWriter writer("headrace bench pages");
  const Comparison against{"peer", 2.0, 1.5};
  const auto row = nlohmann::ordered_json::parse(
      writer.line({"pages-cpu", "read/4096x16384", "GB/s", "GB/s", 3.0, true, &against}));
  std::vector<std::string> keys;
  for (const auto& [key, value] : row.items()) keys.push_back(key);
  EXPECT_THAT(keys, testing::ElementsAre("date", "commit", "machine", "command", "table", "case", "metric",
                                         "unit", "value", "peer", "peer_value", "ratio", "checked"));
  EXPECT_EQ(row["value"], 3.0);
  EXPECT_EQ(row["ratio"], 1.5);
  EXPECT_EQ(row["checked"], true);
  const auto unchecked = nlohmann::json::parse(writer.line({"misc", "import", "ms", "ms", 3.0}));
  EXPECT_EQ(unchecked["checked"], false);
}

}  // namespace
}  // namespace headrace::cli
