// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/http_text.hpp"

#include <gtest/gtest.h>

namespace headrace::cli::demo {
namespace {

std::string in_one_piece(std::string_view bytes) {
  Utf8Text utf8;
  const std::string text = utf8.take(bytes);
  return text + utf8.finish();
}

std::string byte_by_byte(std::string_view bytes) {
  Utf8Text utf8;
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) text += utf8.take(bytes.substr(i, 1));
  return text + utf8.finish();
}

TEST(Utf8Text, ValidUtf8IsUnchanged) {
  const std::string text =
      "a\xC2\x80 \xE2\x82\xAC \xED\x9F\xBF \xEF\xBF\xBF \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF";
  EXPECT_EQ(in_one_piece(text), text);
  EXPECT_EQ(byte_by_byte(text), text);
}

TEST(Utf8Text, EachLongestInvalidPrefixOfACharacterBecomesOneReplacementCharacter) {
  const std::string mark = "\xEF\xBF\xBD";
  const std::pair<std::string, int> cases[] = {
      {"\x80", 1},              // a continuation byte without a first byte
      {"\xC0\x80", 2},          // overlong
      {"\xE0\x80\x80", 3},      // overlong
      {"\xED\xA0\x80", 3},      // surrogate
      {"\xF4\x90\x80\x80", 4},  // above the last character
      {"\xF5", 1},
      {"\xE2\x82", 1},      // cut off
      {"\xF0\x90\x80", 1},  // cut off
  };
  for (const auto& [bytes, marks] : cases) {
    std::string expected;
    for (int i = 0; i < marks; ++i) expected += mark;
    EXPECT_EQ(in_one_piece(bytes), expected);
    EXPECT_EQ(byte_by_byte(bytes), expected);
    EXPECT_EQ(byte_by_byte(bytes + "a"), expected + "a");
  }
}

TEST(Utf8Text, AnIncompleteCharacterIsHeldBack) {
  Utf8Text utf8;
  EXPECT_EQ(utf8.take("a\xE2\x82"), "a");
  EXPECT_EQ(utf8.take("\xAC"), "\xE2\x82\xAC");
  EXPECT_EQ(utf8.finish(), "");
}

TEST(StopFinder, TheTextEndsBeforeTheFirstStopWord) {
  StopFinder finder({"four", "two"});
  EXPECT_EQ(finder.take("one two three four"), "one ");
  EXPECT_TRUE(finder.found());
  EXPECT_EQ(finder.take("five"), "");
  EXPECT_EQ(finder.finish(), "");
}

TEST(StopFinder, TextThatMayBeginAStopWordIsHeldBackUntilDecided) {
  StopFinder finder({"abac", "x"});
  EXPECT_EQ(finder.take("1aba"), "1");
  EXPECT_EQ(finder.take("b"), "ab");  // the last "ab" of "abab" may still begin "abac"
  EXPECT_FALSE(finder.found());
  EXPECT_EQ(finder.take("ac2"), "");
  EXPECT_TRUE(finder.found());
}

TEST(StopFinder, HeldBackTextIsReturnedWhenTheTextEnds) {
  StopFinder finder({"stop"});
  EXPECT_EQ(finder.take("do not sto"), "do not ");
  EXPECT_EQ(finder.finish(), "sto");
  EXPECT_FALSE(finder.found());
}

TEST(StopFinder, WithoutStopWordsAllTextIsReturnedAtOnce) {
  StopFinder finder({});
  EXPECT_EQ(finder.take("text"), "text");
}

}  // namespace
}  // namespace headrace::cli::demo
