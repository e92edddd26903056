// SPDX-License-Identifier: Apache-2.0
// Making errors: a code, a sentence with the values, and the system's own text if a system call failed.
#pragma once

#include <headrace/result.hpp>

#include <fmt/format.h>

#include <string>
#include <utility>

namespace headrace {

/// An error with a formatted sentence: make_error(Code::not_found, "peer {} is unknown", name).
template <class... Args>
[[nodiscard]] Error make_error(Code code, fmt::format_string<Args...> text, Args&&... args) {
  return Error{code, fmt::format(text, std::forward<Args>(args)...)};
}

/// The system's text for an errno in lower case, with the number: "permission denied (errno 13)".
[[nodiscard]] std::string os_error_text(int error_number);

/// The default code for an errno, if the caller has no better one; backend_failed if none fits.
[[nodiscard]] Code code_of_errno(int error_number) noexcept;

/// An error whose cause is an errno: os_error(code, errno, "bind {}", address) reads
/// "bind 127.0.0.1:80: permission denied (errno 13)".
template <class... Args>
[[nodiscard]] Error os_error(Code code, int error_number, fmt::format_string<Args...> what, Args&&... args) {
  return Error{code, fmt::format(what, std::forward<Args>(args)...) + ": " + os_error_text(error_number)};
}

/// The same with the code that fits the errno.
template <class... Args>
[[nodiscard]] Error os_error(int error_number, fmt::format_string<Args...> what, Args&&... args) {
  return os_error(code_of_errno(error_number), error_number, what, std::forward<Args>(args)...);
}

}  // namespace headrace

/// Declares `name` as the value of a Result, or returns its error from the function: HEADRACE_TRY(fd,
/// open_file(path));
#define HEADRACE_TRY(name, ...)                                    \
  auto name##_or_error = (__VA_ARGS__);                            \
  if (!name##_or_error) return std::move(name##_or_error).error(); \
  auto name = std::move(name##_or_error).value()

/// Returns the error of a Result from the function; drops its value.
#define HEADRACE_TRY_VOID(...)                                                                             \
  do {                                                                                                     \
    if (auto headrace_result = (__VA_ARGS__); !headrace_result) return std::move(headrace_result).error(); \
  } while (false)
