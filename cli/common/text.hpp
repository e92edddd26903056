// SPDX-License-Identifier: Apache-2.0
// Texts for users: sizes, times, wrapped lines, names that match a pattern or are similar.
#pragma once

#include <headrace/result.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::cli {

inline constexpr std::size_t line_width = 120;

/// "4096", "4K", "64KiB", "1M", "1 GiB": K, M, G, T are powers of 1024; KB, MB, GB, TB powers of 1000.
///   errors  invalid_argument (not a size, or above 2^63)
[[nodiscard]] Result<std::uint64_t> parse_size(std::string_view text);
/// Sizes that are separated by commas.
[[nodiscard]] Result<std::vector<std::uint64_t>> parse_sizes(std::string_view text);

/// Decimal units, for moved bytes: "512.0 MB", "1.5 GB", "17 B".
[[nodiscard]] std::string amount_text(std::uint64_t bytes);
/// Binary units, for page sizes and memory: "4 KiB", "256 MiB"; bytes if the size is not a multiple of 1024.
[[nodiscard]] std::string size_text(std::uint64_t bytes);
/// "850 ms", "12.3 s", "4 min 10 s".
[[nodiscard]] std::string seconds_text(double seconds);

/// Breaks the text into lines of at most `width` columns. Every line but the first begins with `indent`
/// blanks. A word that is too long for a line is broken.
[[nodiscard]] std::string wrap(std::string_view text, std::size_t indent = 0, std::size_t width = line_width);
/// Shortens the text to `width` columns. Dots replace its middle, where names differ least.
[[nodiscard]] std::string shorten(std::string_view text, std::size_t width);

/// Whether the pattern has characters that `matches` does not take literally.
[[nodiscard]] bool is_pattern(std::string_view pattern);
/// Matches shell patterns: `*`, `?`, `[abc]`; `*` matches dots and slashes too.
[[nodiscard]] bool matches(const std::string& pattern, const std::string& name);
/// Up to `count` names that are similar to `name`, the most similar first.
[[nodiscard]] std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& names,
                                               std::size_t count = 3);

/// Prints a message to stderr after the command's name. Lines are wrapped on a terminal only: in a log file a
/// message stays on one line, so that a search finds it. Control characters, which names of peers and files
/// may bring, are printed as \x1b.
void complain(const std::string& message);

}  // namespace headrace::cli
