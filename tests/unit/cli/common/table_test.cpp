// SPDX-License-Identifier: Apache-2.0
#include "cli/common/table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace headrace::cli {
namespace {

std::size_t widest_row(const std::string& text) {
  std::size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

TEST(Tables, ACellBringsNothingThatATerminalObeys) {
  Table table({{"name"}, {"note"}});
  table.add({"a\x1b[2J", "b\x07"});
  EXPECT_EQ(table.text(), "name      note\na\\x1b[2J  b\\x07\n");
}

TEST(Tables, AColumnIsAsWideAsItsWidestCell) {
  Table table({{"name"}, {"size", Table::Align::right}});
  table.add({"a", "1"});
  table.add({"longer", "12345"});
  EXPECT_EQ(table.text(), "name     size\na           1\nlonger  12345\n");
}

TEST(Tables, NoLineIsWiderThanTheTerminal) {
  Table table({{"name"}, {"sentence"}});
  table.add({std::string(200, 'n'), std::string(50, 's') + " " + std::string(300, 't')});
  EXPECT_LE(widest_row(table.text()), line_width);
  EXPECT_LE(widest_row(table.text(60)), 60U);
}

}  // namespace
}  // namespace headrace::cli
