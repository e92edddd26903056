// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.hpp"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

/// The UTF-8 encoding of a number of up to 21 bits, by the rule of the standard, whether or not it is a
/// character.
std::string encoded(char32_t c) {
  const auto low = [](char32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), low(c)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | (c >> 12)), low(c >> 6), low(c)};
  return {static_cast<char>(0xF0 | (c >> 18)), low(c >> 12), low(c >> 6), low(c)};
}

TEST(Utf8, every_character_is_valid_and_every_other_number_is_not) {
  for (char32_t c = 0; c < 0x200000; c += c < 0x12000 ? 1 : 251) {
    const bool character = c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
    ASSERT_EQ(is_utf8("a" + encoded(c) + "b"), character) << std::hex << static_cast<unsigned>(c);
    if (c >= 0x80) {
      ASSERT_FALSE(is_utf8(encoded(c).substr(0, encoded(c).size() - 1)));
    }
  }
}

TEST(Utf8, overlong_truncated_and_headless_sequences_are_invalid) {
  for (const char* const text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x80\xAF", "\xE0\x9F\xBF", "\xF0\x80\x80\xAF", "\xF0\x8F\xBF\xBF",
        "\x80", "a\xBF", "\xFF", "\xFE", "\xE2\x28\xA1", "\xE2\x82\x28", "\xF5\x80\x80\x80"})
    EXPECT_FALSE(is_utf8(text)) << text;
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8(std::string("\0key", 4)));
}

}  // namespace
}  // namespace headrace
