// SPDX-License-Identifier: Apache-2.0
#include "cli/common/text.hpp"

#include "cli/common/errors.hpp"
#include "formats/names.hpp"

#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

namespace headrace::cli {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::array units{
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"k", 1ULL << 10},
    Unit{"kib", 1ULL << 10},
    Unit{"kb", 1'000},
    Unit{"m", 1ULL << 20},
    Unit{"mib", 1ULL << 20},
    Unit{"mb", 1'000'000},
    Unit{"g", 1ULL << 30},
    Unit{"gib", 1ULL << 30},
    Unit{"gb", 1'000'000'000},
    Unit{"t", 1ULL << 40},
    Unit{"tib", 1ULL << 40},
    Unit{"tb", 1'000'000'000'000},
};

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return result;
}

/// The least number of letters to change, add or remove to turn one text into the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  const std::string_view whole = trim(text);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(whole.data(), whole.data() + whole.size(), number);
  const std::string unit = lower(trim(whole.substr(static_cast<std::size_t>(end - whole.data()))));
  const auto* const row =
      std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == unit; });
  if (error != std::errc() || row == units.end())
    return fail(Code::invalid_argument,
                "\"{}\" is not a size: write a number and a unit, as in 4096, 64K or 1GiB", text);
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(number, row->factor, &bytes) || bytes >> 63 != 0)
    return fail(Code::invalid_argument, "\"{}\" is more than any memory has", text);
  return bytes;
}

Result<std::vector<std::uint64_t>> parse_sizes(std::string_view text) {
  std::vector<std::uint64_t> sizes;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    HEADRACE_CLI_TRY(size, parse_size(text.substr(at, comma - at)));
    sizes.push_back(size);
    at = comma + 1;
  }
  return sizes;
}

std::string amount_text(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value < 1e3) return fmt::format("{} B", bytes);
  if (value < 999.95e3) return fmt::format("{:.1f} kB", value / 1e3);
  if (value < 999.95e6) return fmt::format("{:.1f} MB", value / 1e6);
  if (value < 999.95e9) return fmt::format("{:.1f} GB", value / 1e9);
  return fmt::format("{:.1f} TB", value / 1e12);
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::array names{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (unit + 1 < names.size() && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, names[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 119.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  if (whole < 7200) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string wrap(std::string_view text, std::size_t indent, std::size_t width) {
  const std::string blanks(indent, ' ');
  std::string result;
  std::size_t column = 0;
  const auto next_line = [&] {
    result += '\n';
    result += blanks;
    column = indent;
  };
  bool first_word = true;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\n') {
      next_line();
      first_word = true;
      ++at;
      continue;
    }
    // Blanks at the beginning of a line are indentation and stay; between words they become one blank.
    std::size_t word = at;
    while (word < text.size() && text[word] == ' ') ++word;
    std::size_t end = word;
    while (end < text.size() && text[end] != ' ' && text[end] != '\n') ++end;
    const std::size_t gap = first_word ? word - at : std::min<std::size_t>(word - at, 1);
    if (!first_word && column + gap + (end - word) > width) {
      next_line();
    } else {
      result.append(gap, ' ');
      column += gap;
    }
    for (; word < end; ++word, ++column) {
      if (column >= width) next_line();
      result += text[word];
    }
    first_word = false;
    at = end;
  }
  return result;
}

std::string shorten(std::string_view text, std::size_t width) {
  if (text.size() <= width) return std::string(text);
  if (width <= 3) return std::string(text.substr(0, width));
  const std::size_t kept = width - 3;
  return fmt::format("{}...{}", text.substr(0, kept - kept / 2), text.substr(text.size() - kept / 2));
}

bool is_pattern(std::string_view pattern) { return pattern.find_first_of("*?[") != std::string_view::npos; }

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& names,
                                 std::size_t count) {
  struct Candidate {
    std::size_t distance;
    const std::string* name;
  };
  const std::string wanted = lower(name);
  std::vector<Candidate> candidates;
  for (const std::string& other : names) {
    const std::string known = lower(other);
    std::size_t distance = edit_distance(wanted, known);
    // `name` is a part of a longer name: the letters that it lacks count little.
    if (!wanted.empty() && known.find(wanted) != std::string::npos)
      distance = 1 + (known.size() - wanted.size()) / 8;
    if (distance <= std::max<std::size_t>(3, wanted.size() / 3)) candidates.push_back({distance, &other});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.distance < b.distance; });
  std::vector<std::string> result;
  for (const Candidate& candidate : candidates) {
    if (result.size() == count) break;
    result.push_back(*candidate.name);
  }
  return result;
}

void complain(const std::string& message) {
  const std::string text = formats::printable("headrace: " + message);
  const std::size_t width =
      ::isatty(STDERR_FILENO) == 1 ? line_width : std::numeric_limits<std::size_t>::max();
  std::fprintf(stderr, "%s\n", wrap(text, 2, width).c_str());
}

}  // namespace headrace::cli
