// SPDX-License-Identifier: Apache-2.0
#include "formats/names.hpp"

#include <gtest/gtest.h>

namespace headrace::formats {
namespace {

TEST(Names, ControlCharactersOfAsciiAreFoundAndOthersAreNot) {
  EXPECT_TRUE(has_control_character(std::string_view("a\0b", 3)));
  EXPECT_TRUE(has_control_character("line\n"));
  EXPECT_TRUE(has_control_character("\x7f"));
  EXPECT_FALSE(has_control_character(""));
  EXPECT_FALSE(has_control_character("/model/layers.0/\xc3\xa9 [0]"));
}

TEST(Names, AQuotedNameShowsItsControlCharacters) {
  EXPECT_EQ(name_text(std::string_view("a\0\x1b[2J\xc3\xa9", 8)), "\"a\\x00\\x1b[2J\xc3\xa9\"");
}

}  // namespace
}  // namespace headrace::formats
