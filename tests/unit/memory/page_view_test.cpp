// SPDX-License-Identifier: Apache-2.0
#include "memory/page_view.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

PageShape shape(const PageView& view) { return PageShape::make(view).value(); }

std::string refusal(const PageView& view) {
  const auto made = PageShape::make(view);
  EXPECT_EQ(made.code(), Code::invalid_argument);
  return made ? std::string() : made.error().message;
}

/// A grid as text: the bytes of a run, then count:local stride:remote stride of each dimension.
std::string grid_text(const Result<std::optional<headrace_page_grid_v1>>& paired) {
  if (!paired) return paired.error().message;
  if (!*paired) return "one run";
  const headrace_page_grid_v1& grid = **paired;
  std::string text = std::to_string(grid.run_bytes);
  std::uint64_t runs = 1;
  for (std::uint32_t d = 0; d < grid.dimensions; ++d) {
    text += fmt::format(" {}:{}:{}", grid.counts[d], grid.local_strides[d], grid.remote_strides[d]);
    runs *= grid.counts[d];
  }
  EXPECT_EQ(grid.runs, runs);
  return text;
}

std::string paired(const PageView& local, const PageView& remote) {
  const PageShape here = shape(local), there = shape(remote);
  return grid_text(pair_shapes(&here, &there));
}

TEST(page_view, a_page_has_the_bytes_of_its_elements_and_the_extent_of_their_places) {
  const PageShape heads = shape({{2, 16, 4, 128}, {1'000'000, 2048, 256, 2}, 2});
  EXPECT_EQ(heads.bytes(), 2U * 16 * 4 * 128 * 2);
  EXPECT_EQ(heads.extent(), 1'000'000U + 15 * 2048 + 3 * 256 + 127 * 2 + 2);
  EXPECT_EQ(heads.described(), "(2, 16, 4, 128) of 2 bytes");
  const PageShape dense = shape({{3, 5}, {}, 7});
  EXPECT_EQ(dense.bytes(), 105U);
  EXPECT_EQ(dense.extent(), 105U);
}

TEST(page_view, an_impossible_view_is_refused_with_the_expected_value) {
  EXPECT_THAT(refusal({{}, {}, 2}), AllOf(HasSubstr("0 dimensions"), HasSubstr("1 to 4")));
  EXPECT_THAT(refusal({{1, 2, 3, 4, 5}, {}, 2}), AllOf(HasSubstr("5 dimensions"), HasSubstr("1 to 4")));
  EXPECT_THAT(refusal({{2, 3}, {6}, 2}), AllOf(HasSubstr("1 strides"), HasSubstr("one for each dimension")));
  EXPECT_THAT(refusal({{2, 3}, {}, 0}), HasSubstr("at least one"));
  EXPECT_THAT(refusal({{2, 0}, {}, 2}),
              AllOf(HasSubstr("dimension 1 has extent 0"), HasSubstr("at least 1")));
  EXPECT_THAT(refusal({{-2, 3}, {}, 2}), HasSubstr("dimension 0 has extent -2"));
  EXPECT_THAT(refusal({{2, 3}, {-6, 2}, 2}), AllOf(HasSubstr("stride -6"), HasSubstr("forward")));
  EXPECT_THAT(refusal({{2, 3}, {0, 2}, 2}), AllOf(HasSubstr("stride 0"), HasSubstr("a place of its own")));
  EXPECT_THAT(refusal({{4, 4}, {2, 2}, 2}),
              AllOf(HasSubstr("32 bytes"), HasSubstr("14 only"), HasSubstr("longer")));
  EXPECT_THAT(refusal({{largest, 4}, {}, 2}), HasSubstr("2^63"));
  EXPECT_THAT(refusal({{3, 2}, {largest, 1}, 1}), HasSubstr("2^63"));
  EXPECT_THAT(refusal({{2, 2, 2}, {largest, largest, largest}, 1}), HasSubstr("2^63"));
  EXPECT_TRUE(PageShape::make({{1, 3}, {0, 2}, 2})) << "a dimension of extent 1 never uses its stride";
}

TEST(page_view, the_same_layout_on_both_sides_is_one_run) {
  EXPECT_EQ(paired({{16, 8, 128}, {}, 2}, {{16, 8, 128}, {2048, 256, 2}, 2}), "one run");
  const PageShape dense = shape({{16, 8, 128}, {}, 2});
  EXPECT_EQ(grid_text(pair_shapes(&dense, nullptr)), "one run");
  EXPECT_EQ(grid_text(pair_shapes(nullptr, nullptr)), "one run");
}

TEST(page_view, dimensions_contiguous_on_both_sides_are_merged) {
  const PageView tokens_outside{{2, 16, 8, 128}, {100'000, 2048, 256, 2}, 2};
  const PageView heads_outside{{2, 16, 8, 128}, {200'000, 256, 4096, 2}, 2};
  EXPECT_EQ(paired(tokens_outside, heads_outside), "256 2:100000:200000 16:2048:256 8:256:4096");
  EXPECT_EQ(paired(tokens_outside, tokens_outside), "32768 2:100000:100000");
  // Half of the heads: those of one token are contiguous on both sides.
  EXPECT_EQ(paired({{16, 4, 128}, {2048, 256, 2}, 2}, {{16, 4, 128}, {1024, 256, 2}, 2}),
            "1024 16:2048:1024");
  // Two dimensions that one stride covers on both sides.
  EXPECT_EQ(paired({{6, 4, 10}, {400, 100, 1}, 1}, {{6, 4, 10}, {80, 20, 1}, 1}), "10 24:100:20");
  EXPECT_EQ(paired({{5, 6, 4}, {2400, 400, 100}, 1}, {{5, 6, 4}, {480, 80, 20}, 1}), "1 120:100:20");
}

TEST(page_view, a_page_without_a_view_has_contiguous_elements) {
  const PageShape view = shape({{16, 8, 128}, {256, 4096, 2}, 2});
  EXPECT_EQ(grid_text(pair_shapes(&view, nullptr)), "256 16:256:2048 8:4096:256");
  EXPECT_EQ(grid_text(pair_shapes(nullptr, &view)), "256 16:2048:256 8:256:4096");
}

TEST(page_view, dimensions_of_extent_one_are_ignored_and_items_of_different_sizes_are_paired) {
  EXPECT_EQ(paired({{1, 16, 1, 128}, {7, 512, 7, 2}, 2}, {{16, 128}, {300, 2}, 2}), "256 16:512:300");
  EXPECT_EQ(paired({{16, 256}, {512, 1}, 1}, {{16, 128}, {300, 2}, 2}), "256 16:512:300");
}

TEST(page_view, elements_with_gaps_between_them_are_runs) {
  EXPECT_EQ(paired({{4, 3}, {6, 2}, 2}, {{4, 3}, {2, 8}, 2}), "2 4:6:2 3:2:8");
}

TEST(page_view, different_shapes_are_refused_with_both_shapes) {
  EXPECT_THAT(paired({{16, 8, 128}, {}, 2}, {{8, 16, 128}, {}, 2}),
              AllOf(HasSubstr("(16, 8, 128) of 2 bytes"), HasSubstr("(8, 16, 128) of 2 bytes"),
                    HasSubstr("let the strides differ")));
  EXPECT_THAT(paired({{16, 1024}, {}, 2}, {{16, 8, 128}, {2048, 256, 2}, 2}),
              HasSubstr("(16, 1024) of 2 bytes"));
  EXPECT_THAT(paired({{16, 128}, {512, 4}, 1}, {{16, 64}, {512, 8}, 2}), HasSubstr("let the strides differ"));
}

TEST(page_view, runs_by_place_gives_as_few_runs_as_possible) {
  EXPECT_EQ(runs_by_place(shape({{16, 8, 128}, {256, 4096, 2}, 2})).dimensions, 0U)
      << "the view is transposed but covers all bytes";
  const auto heads = runs_by_place(shape({{16, 4, 128}, {2048, 256, 2}, 2}));
  EXPECT_EQ(heads.dimensions, 1U);
  EXPECT_EQ(heads.item_bytes, 1024U);
}

}  // namespace
}  // namespace headrace
