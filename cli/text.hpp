// SPDX-License-Identifier: Apache-2.0
// Words for people: sizes, times, wrapped sentences, names that match or come near.
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
/// The parts between commas, each as a size.
[[nodiscard]] Result<std::vector<std::uint64_t>> parse_sizes(std::string_view text);

/// Decimal, for amounts moved: "512.0 MB", "1.5 GB", "17 B".
[[nodiscard]] std::string amount_text(std::uint64_t bytes);
/// Binary, for page sizes and memory: "4 KiB", "256 MiB"; what divides by nothing stays in bytes.
[[nodiscard]] std::string size_text(std::uint64_t bytes);
/// "850 ms", "12.3 s", "4 min 10 s".
[[nodiscard]] std::string seconds_text(double seconds);

/// The text in lines of at most `width` columns; every line but the first begins with `indent` blanks. A word
/// that does not fit is broken.
[[nodiscard]] std::string wrap(std::string_view text, std::size_t indent = 0, std::size_t width = line_width);
/// As many columns of the text as fit, the cut marked by dots in the middle, where names differ least.
[[nodiscard]] std::string shorten(std::string_view text, std::size_t width);

/// Whether the pattern has characters that `matches` does not take literally.
[[nodiscard]] bool is_pattern(std::string_view pattern);
/// Shell patterns: `*`, `?`, `[abc]`; a `*` also goes over dots and slashes.
[[nodiscard]] bool matches(const std::string& pattern, const std::string& name);
/// Up to `count` of the names that are most like `name`, the likest first; none that is nothing like it.
[[nodiscard]] std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& names,
                                               std::size_t count = 3);

}  // namespace headrace::cli
