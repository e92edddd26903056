// SPDX-License-Identifier: Apache-2.0
#include "base/names.hpp"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Names, control_characters_are_found_and_others_are_not) {
  EXPECT_TRUE(has_control_character(std::string_view("a\0b", 3)));
  EXPECT_TRUE(has_control_character("line\n"));
  EXPECT_TRUE(has_control_character("\x7f"));
  EXPECT_TRUE(
      has_control_character("\xc2\x9b"
                            "2J"))
      << "CSI in one character";
  EXPECT_FALSE(has_control_character(""));
  EXPECT_FALSE(has_control_character("/model/layers.0/\xc3\x9b \xc2\xa0[0]"));
}

TEST(Names, a_quoted_name_shows_its_control_characters) {
  EXPECT_EQ(name_text(std::string_view("a\0\x1b[2J\xc3\xa9\n", 9)), "\"a\\x00\\x1b[2J\xc3\xa9\\x0a\"");
}

TEST(Names, a_printable_text_keeps_its_lines_and_nothing_that_a_terminal_obeys) {
  EXPECT_EQ(printable("one\ntwo \x1b]0;title\x07 \xc2\x9b"), "one\ntwo \\x1b]0;title\\x07 \\xc2\\x9b");
}

}  // namespace
}  // namespace headrace
