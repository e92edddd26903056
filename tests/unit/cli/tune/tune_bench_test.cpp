// SPDX-License-Identifier: Apache-2.0
// The measuring of `headrace tune`, between backends that need no GPU.
#include "cli/tune/tune_bench.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace headrace::cli {
namespace {

using testing::ElementsAre;
using testing::Key;

const CollOperation& operation_of(std::string_view name) {
  return *std::ranges::find(coll_operations(), name, &CollOperation::name);
}

Tuned measured(const std::vector<std::string>& backends, std::string_view operation) {
  const TunePlan plan{backends, {&operation_of(operation)}, {8, 64}, {DType::float32}, 0.001, 2, "cpu"};
  std::vector<Tuned> tuned(2);
  const auto ran = run_as_threads(2, [&](const RankPlace& place) -> Result<void> {
    measure_operation(plan, place, *plan.operations[0], DType::float32,
                      tuned[static_cast<std::size_t>(place.rank)]);
    return {};
  });
  EXPECT_TRUE(ran.ok());
  EXPECT_TRUE(tuned[1].rows.empty() && tuned[1].refusals.empty());
  return tuned[0];
}

TEST(TuneBench, a_row_has_the_times_of_all_backends_and_the_bytes_of_one_part) {
  const Tuned tuned = measured({"host", "lazy"}, "all_gather_single");
  ASSERT_EQ(tuned.rows.size(), 2U);
  for (const TunedRow& row : tuned.rows) {
    EXPECT_EQ(row.operation, CommOperation::all_gather_single);
    EXPECT_EQ(row.dtype_bytes, 4);
    EXPECT_THAT(row.seconds, ElementsAre(Key("host"), Key("lazy")));
    EXPECT_TRUE(fastest_in(row).has_value());
  }
  EXPECT_EQ(tuned.rows[0].bytes, 8U);
  EXPECT_EQ(tuned.rows[1].bytes, 64U);
  EXPECT_THAT(tuned.refusals, testing::IsEmpty());
}

TEST(TuneBench, an_operation_without_elements_has_one_row) {
  const Tuned tuned = measured({"host"}, "barrier");
  ASSERT_EQ(tuned.rows.size(), 1U);
  EXPECT_EQ(tuned.rows[0].bytes, 0U);
  EXPECT_EQ(tuned.rows[0].dtype_bytes, 0);
}

TEST(TuneBench, a_backend_that_does_not_open_or_is_wrong_is_told) {
  const Tuned tuned = measured({"hosts", "fake", "host"}, "all_reduce");
  for (const TunedRow& row : tuned.rows) EXPECT_TRUE(row.seconds.contains("host"));
  EXPECT_THAT(tuned.refusals,
              testing::Contains(testing::HasSubstr("all_reduce by hosts: open communicator")));
  ASSERT_TRUE(tuned.wrong.has_value());  // the backend `fake` moves nothing
  EXPECT_THAT(tuned.wrong->message, testing::HasSubstr("elements were wrong"));
}

}  // namespace
}  // namespace headrace::cli
