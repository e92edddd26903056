// SPDX-License-Identifier: Apache-2.0
// The options of one backend as its plugin reads them: the value that the host resolved, else the row's
// default.
#pragma once

#include <headrace/plugin/backend.hpp>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headrace {

/// Each reader fails with invalid_argument and names the option and its value. The constructor's arguments
/// must outlive the object.
class BackendOptions {
 public:
  BackendOptions(const char* backend, std::span<const headrace_option_v1> rows,
                 const plugin::CreateArgs& args)
      : backend_(backend), rows_(rows), args_(args) {}

  /// A count or bytes, from `least` to `most`.
  [[nodiscard]] Result<std::uint64_t> number(const char* name, std::uint64_t least, std::uint64_t most) const;
  [[nodiscard]] Result<std::chrono::nanoseconds> duration(const char* name) const;
  /// "auto" is true, "off" is false.
  [[nodiscard]] Result<bool> automatic(const char* name) const;
  /// "on" is true, "off" is false.
  [[nodiscard]] Result<bool> enabled(const char* name) const;

 private:
  [[nodiscard]] Result<bool> either(const char* name, std::string_view yes) const;
  [[nodiscard]] std::string text(const char* name) const;
  [[nodiscard]] std::string full_name(const char* name) const;

  const char* backend_;
  std::span<const headrace_option_v1> rows_;
  const plugin::CreateArgs& args_;
};

}  // namespace headrace
