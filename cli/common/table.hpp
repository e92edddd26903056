// SPDX-License-Identifier: Apache-2.0
// A table of text for a terminal: columns as wide as their widest cell, lines of at most 120 columns.
#pragma once

#include "cli/common/text.hpp"

#include <string>
#include <vector>

namespace headrace::cli {

class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// One cell a column; missing ones are empty.
  void add(std::vector<std::string> cells);
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  /// The lines, each with its line end. The last column is wrapped if it does not fit; others are shortened.
  [[nodiscard]] std::string text(std::size_t width = line_width) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace headrace::cli
