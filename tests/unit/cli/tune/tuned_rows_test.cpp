// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/tuned_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr auto reduce = CommOperation::all_reduce;

TunedRow row_of(std::uint64_t bytes, double p2p, double nccl, CommOperation operation = reduce,
                int width = 4) {
  return {operation, width, bytes, {{"p2p", p2p}, {"nccl", nccl}}};
}

CommTuningEntry entry_of(std::optional<std::uint64_t> up_to, const char* backend,
                         CommOperation operation = reduce) {
  return {.gpu = "A",
          .ranks = 2,
          .sharing = false,
          .operation = operation,
          .up_to_bytes = up_to,
          .backend = backend};
}
const CommTuningEntry common{.gpu = "A", .ranks = 2, .sharing = false};

TEST(TunedRows, a_backend_holds_up_to_the_middle_of_the_size_where_another_is_faster) {
  const std::vector rows{row_of(100, 1, 2), row_of(1'000, 1, 2), row_of(4'000, 3, 2), row_of(16'000, 9, 2)};
  EXPECT_THAT(entries_of(rows, common, false), ElementsAre(entry_of(2'000, "p2p"), entry_of({}, "nccl")));
}

TEST(TunedRows, a_backend_that_is_hardly_faster_makes_no_entry) {
  const std::vector rows{row_of(100, 1, 2), row_of(1'000, 1.04, 1), row_of(4'000, 1, 2)};
  EXPECT_THAT(entries_of(rows, common, false), ElementsAre(entry_of({}, "p2p")));
}

TEST(TunedRows, a_backend_that_does_not_run_an_operation_is_not_chosen_for_it) {
  const std::vector<TunedRow> rows{{reduce, 4, 100, {{"p2p", 1}}},
                                   {reduce, 4, 1'000, {}},
                                   {CommOperation::broadcast, 4, 100, {{"nccl", 1}}}};
  EXPECT_THAT(entries_of(rows, common, false),
              ElementsAre(entry_of({}, "p2p"), entry_of({}, "nccl", CommOperation::broadcast)));
  EXPECT_THAT(entries_of({}, common, false), IsEmpty());
}

TEST(TunedRows, widths_have_entries_of_their_own) {
  const std::vector rows{row_of(100, 1, 2, reduce, 2), row_of(100, 2, 1, reduce, 4)};
  CommTuningEntry narrow = entry_of({}, "p2p"), wide = entry_of({}, "nccl");
  narrow.dtype_bytes = 2, wide.dtype_bytes = 4;
  EXPECT_THAT(entries_of(rows, common, true), ElementsAre(narrow, wide));
}

TEST(TunedRows, where_ranks_do_not_know_the_size_the_largest_one_decides) {
  const auto lists = CommOperation::all_to_all;
  const std::vector rows{row_of(100, 1, 2, lists), row_of(1'000, 3, 2, lists)};
  EXPECT_THAT(entries_of(rows, common, false), ElementsAre(entry_of({}, "nccl", lists)));
}

TEST(TunedRows, entries_of_others_stay) {
  CommTuningEntry of_four = entry_of({}, "p2p"), general{.backend = "nccl"};
  of_four.ranks = 4;
  const std::vector old{entry_of(7, "p2p"), of_four, entry_of({}, "p2p", CommOperation::barrier), general};
  EXPECT_THAT(
      merged({entry_of({}, "nccl")}, old),
      ElementsAre(entry_of({}, "nccl"), of_four, entry_of({}, "p2p", CommOperation::barrier), general));
}

TEST(TunedRows, operations_are_those_of_tables) {
  EXPECT_EQ(tuned_operation("all_reduce"), reduce);
  EXPECT_EQ(tuned_operation("barrier"), CommOperation::barrier);
  for (const char* name : {"send", "put", "split", "all_gather_p"})
    EXPECT_EQ(tuned_operation(name), std::nullopt);
}

}  // namespace
}  // namespace headrace::cli
