// SPDX-License-Identifier: Apache-2.0
// A benchmark that checks its data must find wrong data.
#include "cli/bench/page_pattern.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace headrace::cli {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t page = 64, slots = 16;

struct Moved {
  std::vector<std::byte> source{page * slots}, target{page * slots};
  PagePairs pairs = choose_pages(slots, 8, true, 5);

  Moved() {
    fill_pattern(source, 1);
    fill_pattern(target, 2);
    for (std::size_t i = 0; i < pairs.to.size(); ++i)
      std::memcpy(target.data() + pairs.to[i] * page, source.data() + pairs.from[i] * page, page);
  }
  [[nodiscard]] std::string wrong() const { return wrong_page(target, pairs, page, 1, 2); }
};

TEST(PagePattern, PagesThatWereMovedRightPassTheCheck) { EXPECT_EQ(Moved().wrong(), ""); }

TEST(PagePattern, AFlippedBitIsFound) {
  Moved moved;
  moved.target[moved.pairs.to[3] * page + 17] ^= std::byte{4};
  EXPECT_THAT(moved.wrong(), HasSubstr("page 3 of the request"));
  EXPECT_THAT(moved.wrong(), HasSubstr("from byte 16 on"));
}

TEST(PagePattern, APageThatDidNotMoveIsFound) {
  Moved moved;
  std::vector<std::byte> before(page * slots);
  fill_pattern(before, 2);
  std::memcpy(moved.target.data() + moved.pairs.to[7] * page, before.data() + moved.pairs.to[7] * page, page);
  EXPECT_THAT(moved.wrong(), HasSubstr("not moved at all"));
}

TEST(PagePattern, TwoExchangedPagesAreFound) {
  Moved moved;
  std::swap_ranges(moved.target.begin() + moved.pairs.to[0] * page,
                   moved.target.begin() + (moved.pairs.to[0] + 1) * page,
                   moved.target.begin() + moved.pairs.to[1] * page);
  EXPECT_NE(moved.wrong(), "");
}

TEST(PagePattern, AChangedPageOutsideTheRequestIsFound) {
  Moved moved;
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    if (std::find(moved.pairs.to.begin(), moved.pairs.to.end(), slot) != moved.pairs.to.end()) continue;
    moved.target[slot * page + page - 1] ^= std::byte{1};
    EXPECT_THAT(moved.wrong(), HasSubstr("is not part of the request"));
    return;
  }
  FAIL() << "the request has every page";
}

TEST(PagePattern, SeveralThreadsFillAndCheckAsOneThreadDoes) {
  Moved moved;
  const std::vector<std::byte> right = moved.target;
  for (const std::size_t threads : {std::size_t{2}, std::size_t{3}, std::size_t{7}, slots + 1}) {
    std::vector<std::byte> filled(page * slots);
    fill_pattern(filled, 1, threads);
    EXPECT_EQ(filled, moved.source);
    EXPECT_EQ(wrong_page(right, moved.pairs, page, 1, 2, threads), "");
    for (std::size_t at = 0; at < right.size(); at += page - 1) {
      moved.target = right;
      moved.target[at] ^= std::byte{1};
      moved.target[right.size() - 1 - at / 2] ^=
          std::byte{1};  // two wrong bytes: the check must name the first
      EXPECT_EQ(wrong_page(moved.target, moved.pairs, page, 1, 2, threads),
                wrong_page(moved.target, moved.pairs, page, 1, 2, 1));
    }
  }
}

TEST(PagePattern, TheSameSeedChoosesTheSamePagesInBothProcesses) {
  const PagePairs a = choose_pages(100, 50, true, 77), b = choose_pages(100, 50, true, 77),
                  c = choose_pages(100, 50, true, 78);
  EXPECT_EQ(a.from, b.from);
  EXPECT_EQ(a.to, b.to);
  EXPECT_NE(a.from, a.to);
  EXPECT_NE(a.from, c.from);
}

}  // namespace
}  // namespace headrace::cli
