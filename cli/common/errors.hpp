// SPDX-License-Identifier: Apache-2.0
// Makes and returns errors. It uses the public headers only.
#pragma once

#include <headrace/result.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace headrace::cli {

template <class... Args>
[[nodiscard]] Error fail(Code code, fmt::format_string<Args...> text, Args&&... args) {
  return Error{code, fmt::format(text, std::forward<Args>(args)...)};
}

/// The system's text for the error `number`.
[[nodiscard]] inline std::string system_text(int number = errno) { return std::strerror(number); }

}  // namespace headrace::cli

#define HEADRACE_CLI_JOIN2(a, b) a##b
#define HEADRACE_CLI_JOIN(a, b) HEADRACE_CLI_JOIN2(a, b)

/// `HEADRACE_CLI_TRY(value, f())` declares `value` with the value of f()'s Result; it returns an error of f()
/// from the calling function.
// NOLINTBEGIN(bugprone-macro-parentheses): `name` is declared
#define HEADRACE_CLI_TRY(name, expression)                                                             \
  auto HEADRACE_CLI_JOIN(try_, __LINE__) = (expression);                                               \
  if (!HEADRACE_CLI_JOIN(try_, __LINE__)) return std::move(HEADRACE_CLI_JOIN(try_, __LINE__)).error(); \
  auto name = std::move(HEADRACE_CLI_JOIN(try_, __LINE__)).value()
// NOLINTEND(bugprone-macro-parentheses)

/// The same for a Result whose value is not needed.
#define HEADRACE_CLI_CHECK(expression) \
  if (auto checked = (expression); !checked) return std::move(checked).error()
