// SPDX-License-Identifier: Apache-2.0
#include "cli/common/table.hpp"

#include "formats/names.hpp"

#include <algorithm>

namespace headrace::cli {
namespace {

constexpr std::size_t gap = 2;
constexpr std::size_t least_last = 24;

/// Indents all lines after the first.
std::string indented(const std::string& lines, std::size_t columns) {
  std::string result;
  for (const char c : lines) {
    result += c;
    if (c == '\n') result.append(columns, ' ');
  }
  return result;
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = formats::printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text(std::size_t width) const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t widest = columns_[c].title.size();
    for (const auto& row : rows_) widest = std::max(widest, row[c].size());
    widths.push_back(widest);
  }
  // If the table is too wide, first the last column gets narrower and wraps; then the widest columns are
  // shortened.
  const auto total = [&] {
    std::size_t sum = gap * (widths.size() - 1);
    for (const std::size_t w : widths) sum += w;
    return sum;
  };
  if (total() > width) {
    const std::size_t others = total() - widths.back();
    widths.back() = std::max(std::min(widths.back(), least_last), width - std::min(width, others));
  }
  while (total() > width) {
    const auto widest = std::max_element(widths.begin(), widths.end());
    if (*widest <= 4) break;
    --*widest;
  }

  std::string result;
  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const bool last = c + 1 == columns_.size();
      const std::string& cell = cell_of(c);
      const std::string shown = last && columns_[c].align == Align::left
                                    ? indented(wrap(cell, 0, widths[c]), text.size())
                                    : shorten(cell, widths[c]);
      const std::string blanks(widths[c] - std::min(widths[c], shown.size()), ' ');
      if (columns_[c].align == Align::right) text += blanks;
      text += shown;
      if (last) break;
      if (columns_[c].align == Align::left) text += blanks;
      text.append(gap, ' ');
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    result += text + '\n';
  };
  line([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  for (const auto& row : rows_) line([&](std::size_t c) -> const std::string& { return row[c]; });
  return result;
}

}  // namespace headrace::cli
