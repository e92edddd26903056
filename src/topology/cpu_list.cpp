// SPDX-License-Identifier: Apache-2.0
#include "topology/cpu_list.hpp"

#include "base/text.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

namespace headrace {
namespace {

std::optional<unsigned> parse_number(std::string_view text) {
  constexpr unsigned most = 65535;  // more than any machine has; limits the length of a range
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number > most) return std::nullopt;
  return number;
}

}  // namespace

Result<std::vector<unsigned>> parse_cpu_list(std::string_view text) {
  std::vector<unsigned> numbers;
  for (const std::string_view part : split_list(text)) {
    const std::size_t dash = part.find('-');
    const std::optional<unsigned> first = parse_number(part.substr(0, dash));
    const std::optional<unsigned> last =
        dash == std::string_view::npos ? first : parse_number(part.substr(dash + 1));
    if (!first || !last || *first > *last) {
      return make_error(Code::corrupt, "\"{}\" is not a list of numbers such as 0-3,8", trim(text));
    }
    for (unsigned number = *first; number <= *last; ++number) numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::string cpu_list_text(std::span<const unsigned> numbers) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < numbers.size(); first = last + 1) {
    last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (first != 0) text += ',';
    text += std::to_string(numbers[first]);
    if (last != first) text += '-' + std::to_string(numbers[last]);
  }
  return text;
}

}  // namespace headrace
