// SPDX-License-Identifier: Apache-2.0
#include "cli/common/text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace headrace::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

TEST(Sizes, KMGAndTArePowersOf1024AndKBIsAPowerOf1000) {
  EXPECT_EQ(parse_size("4096").value(), 4096U);
  EXPECT_EQ(parse_size("4K").value(), 4096U);
  EXPECT_EQ(parse_size("64KiB").value(), 65536U);
  EXPECT_EQ(parse_size(" 1 MiB ").value(), 1U << 20);
  EXPECT_EQ(parse_size("2g").value(), 2ULL << 30);
  EXPECT_EQ(parse_size("3KB").value(), 3000U);
}

TEST(Sizes, ATextThatIsNoSizeIsRefused) {
  for (const char* text : {"", "K", "-1", "4X", "4 K K", "1e6", "99999999T", "18446744073709551616"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.code(), Code::invalid_argument);
    EXPECT_NE(size.error().message.find('"' + std::string(text) + '"'), std::string::npos)
        << size.error().message;
  }
}

TEST(Sizes, AListIsSplitAtItsCommas) {
  EXPECT_THAT(parse_sizes("4K,64K,1M").value(), ElementsAre(4096U, 65536U, 1U << 20));
  EXPECT_FALSE(parse_sizes("4K,,1M").ok());
  EXPECT_FALSE(parse_sizes("4K,").ok());
}

TEST(Sizes, ASizeIsWrittenInAFittingUnit) {
  EXPECT_EQ(amount_text(17), "17 B");
  EXPECT_EQ(amount_text(512'000'000), "512.0 MB");
  EXPECT_EQ(amount_text(999'960'000), "1.0 GB");
  EXPECT_EQ(size_text(4096), "4 KiB");
  EXPECT_EQ(size_text(1 << 20), "1 MiB");
  EXPECT_EQ(size_text(1536), "1536 B");
  EXPECT_EQ(size_text(0), "0 B");
}

TEST(Times, ATimeIsWrittenInAFittingUnit) {
  EXPECT_EQ(seconds_text(0.0123), "12 ms");
  EXPECT_EQ(seconds_text(12.34), "12.3 s");
  EXPECT_EQ(seconds_text(250), "4 min 10 s");
  EXPECT_EQ(seconds_text(7260), "2 h 1 min");
}

TEST(Wrapping, LinesEndBetweenWordsAndLaterOnesAreIndented) {
  EXPECT_EQ(wrap("one two three four", 2, 9), "one two\n  three\n  four");
}

TEST(Wrapping, AWordThatIsTooLongIsBroken) {
  EXPECT_EQ(widest_line(wrap(std::string(300, 'x'), 4, 40)), 40U);
}

TEST(Wrapping, LineEndsAndIndentationAreKept) { EXPECT_EQ(wrap("a\n  b c", 0, 20), "a\n  b c"); }

TEST(Shortening, AShortenedTextKeepsBothEnds) {
  EXPECT_EQ(shorten("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(shorten("abcdefghijk", 7), "ab...jk");
  EXPECT_EQ(shorten("abcdef", 2), "ab");
}

TEST(Names, PatternsAreMatchedAsInAShell) {
  EXPECT_TRUE(matches("model.layers.0.*", "model.layers.0.mlp.up.weight"));
  EXPECT_TRUE(matches("a/*", "a/b/c"));
  EXPECT_TRUE(matches("l?[ab]", "lxa"));
  EXPECT_FALSE(matches("*.bias", "x.weight"));
  EXPECT_TRUE(is_pattern("*.bias"));
  EXPECT_FALSE(is_pattern("lm_head.weight"));
}

TEST(Names, TheNearestNamesComeFirstAndDistantNamesAreLeftOut) {
  const std::vector<std::string> names{"lm_head.weight", "model.norm.weight", "model.embed.weight"};
  EXPECT_THAT(nearest("lm_haed.weight", names), ElementsAre("lm_head.weight"));
  EXPECT_EQ(nearest("norm.weight", names).front(), "model.norm.weight");
  EXPECT_THAT(nearest("zzzzzzzzzz", names), IsEmpty());
}

}  // namespace
}  // namespace headrace::cli
