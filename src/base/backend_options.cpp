// SPDX-License-Identifier: Apache-2.0
#include "base/backend_options.hpp"

#include "base/options.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <charconv>

namespace headrace {
namespace {

std::optional<std::uint64_t> parse_count(std::string_view text) {
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return count;
}

std::string limits(std::uint64_t least, std::uint64_t most) {
  if (most < UINT64_MAX) return fmt::format(" from {} to {}", least, most);
  return least > 0 ? fmt::format(" of at least {}", least) : "";
}

std::string as_text(std::chrono::nanoseconds time) {
  const auto ns = time.count();
  if (ns % 1'000'000'000 == 0) return fmt::format("{}s", ns / 1'000'000'000);
  if (ns % 1'000'000 == 0) return fmt::format("{}ms", ns / 1'000'000);
  if (ns % 1'000 == 0) return fmt::format("{}us", ns / 1'000);
  return fmt::format("{}ns", ns);
}

}  // namespace

const headrace_option_v1* BackendOptions::row(std::string_view name) const {
  const auto found =
      std::ranges::find_if(rows_, [&](const headrace_option_v1& row) { return name == row.name; });
  return found == rows_.end() ? nullptr : &*found;
}

std::string BackendOptions::text(const char* name) const {
  const std::string_view given = trim(args_.setting(name));
  const headrace_option_v1* const its_row = row(name);
  return std::string(given.empty() && its_row != nullptr ? its_row->default_value : given);
}

std::vector<std::string> BackendOptions::list(const char* name) const {
  const std::string all = text(name);
  std::vector<std::string> parts;
  for (const std::string_view part : split_list(all)) parts.emplace_back(part);
  return parts;
}

void BackendOptions::refuse(const char* name, std::string_view need) {
  if (error_) return;
  const headrace_option_v1* const its_row = row(name);
  const bool secret = its_row != nullptr && (its_row->flags & HEADRACE_OPTION_SECRET) != 0;
  error_ = make_error(Code::invalid_argument, "option {}.{} is \"{}\" and must be {}", backend_, name,
                      secret ? "(secret)" : text(name), need);
}

std::uint64_t BackendOptions::bytes(const char* name, std::uint64_t least, std::uint64_t most) {
  const auto value = parse_bytes(text(name));
  if (value && *value >= least && *value <= most) return *value;
  refuse(name, fmt::format("a number of bytes{}, as 4096, 64KiB or 4M", limits(least, most)));
  return least;
}

std::uint64_t BackendOptions::count(const char* name, std::uint64_t least, std::uint64_t most) {
  const auto value = parse_count(text(name));
  if (value && *value >= least && *value <= most) return *value;
  refuse(name, fmt::format("a number{}", limits(least, most)));
  return least;
}

std::optional<std::uint64_t> BackendOptions::count_or_auto(const char* name, std::uint64_t least,
                                                           std::uint64_t most) {
  const std::string written = text(name);
  if (written == "auto") return std::nullopt;
  const auto value = parse_count(written);
  if (value && *value >= least && *value <= most) return value;
  refuse(name, fmt::format("auto or a number{}", limits(least, most)));
  return std::nullopt;
}

BackendOptions::Nanoseconds BackendOptions::duration(const char* name, Nanoseconds least, Nanoseconds most) {
  const auto value = parse_duration(text(name));
  if (value && *value >= least && *value <= most) return *value;
  if (most == Nanoseconds::max()) {
    refuse(name, fmt::format("a duration of at least {}, as 50us or 5s", as_text(least)));
  } else {
    refuse(name, fmt::format("a duration from {} to {}", as_text(least), as_text(most)));
  }
  return least;
}

std::optional<BackendOptions::Nanoseconds> BackendOptions::duration_or_auto(const char* name) {
  const std::string written = text(name);
  if (written == "auto") return std::nullopt;
  const auto value = parse_duration(written);
  if (value) return *value;
  refuse(name, "auto or a duration, as 50us or 5s");
  return std::nullopt;
}

std::size_t BackendOptions::choice(const char* name, std::initializer_list<std::string_view> choices) {
  const std::string written = text(name);
  const auto* const found = std::ranges::find(choices, written);
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  std::string need;
  for (const std::string_view& one : choices)
    need += fmt::format("{}{}",
                        &one == choices.begin()     ? ""
                        : &one + 1 == choices.end() ? " or "
                                                    : ", ",
                        one);
  refuse(name, need);
  return 0;
}

}  // namespace headrace
