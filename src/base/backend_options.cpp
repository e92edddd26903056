// SPDX-License-Identifier: Apache-2.0
#include "base/backend_options.hpp"

#include "base/options.hpp"

namespace headrace {

std::string BackendOptions::text(const char* name) const {
  if (const std::string_view given = args_.setting(name); !given.empty()) return std::string(given);
  for (const headrace_option_v1& row : rows_)
    if (std::string_view(row.name) == name) return row.default_value;
  return {};
}

std::string BackendOptions::full_name(const char* name) const {
  return fmt::format("option {}.{}", backend_, name);
}

Result<std::uint64_t> BackendOptions::number(const char* name, std::uint64_t least,
                                             std::uint64_t most) const {
  auto value = parse_bytes(text(name));
  if (!value) return std::move(value).error().within(full_name(name));
  if (*value >= least && *value <= most) return value;
  return make_error(Code::invalid_argument, "{} is {} and must be from {} to {}", full_name(name), *value,
                    least, most);
}

Result<std::chrono::nanoseconds> BackendOptions::duration(const char* name) const {
  auto value = parse_duration(text(name));
  if (!value) return std::move(value).error().within(full_name(name));
  return value;
}

Result<bool> BackendOptions::either(const char* name, std::string_view yes) const {
  const std::string value = text(name);
  if (value == yes) return true;
  if (value == "off") return false;
  return make_error(Code::invalid_argument, "{} is \"{}\" and must be {} or off", full_name(name), value,
                    yes);
}

Result<bool> BackendOptions::automatic(const char* name) const { return either(name, "auto"); }
Result<bool> BackendOptions::enabled(const char* name) const { return either(name, "on"); }

}  // namespace headrace
