// SPDX-License-Identifier: Apache-2.0
// Checks for the numbers of a command line; each has bounds. CLI11's own checks accept -1 for an unsigned
// number, and NaN in every range.
#pragma once

#include "cli/common/arguments.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>

namespace headrace::cli {

/// Whether all of the text is one number from low to high.
template <class Number>
[[nodiscard]] bool is_number_within(const std::string& text, Number low, Number high) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end && value >= low && value <= high;  // false for NaN
}

template <class Number>
[[nodiscard]] Check number_within(const char* kind, Number low, Number high) {
  const std::string wanted = fmt::format("{} from {} to {}", kind, low, high);
  return [low, high, wanted](const std::string& text) {
    return is_number_within(text, low, high) ? std::string() : fmt::format("\"{}\" is not {}", text, wanted);
  };
}

/// Checks for Argument::check.
[[nodiscard]] inline Check whole_number(std::uint64_t low, std::uint64_t high) {
  return number_within("a whole number", low, high);
}
[[nodiscard]] inline Check real_number(double low, double high) {
  return number_within("a number", low, high);
}

}  // namespace headrace::cli
