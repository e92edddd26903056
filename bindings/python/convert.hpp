// SPDX-License-Identifier: Apache-2.0
// Between Python's values and ours: errors, seconds, text, bytes, option tables.
#pragma once

#include <headrace/memory.hpp>
#include <headrace/request.hpp>

#include "bindings/python/interpreter.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::python {

/// The Python exception of that error, not raised.
nb::object to_exception(const Error& error);
[[noreturn]] void raise(const Error& error);
/// Raises invalid_argument with this sentence, and the index of the page that it is about.
[[noreturn]] void raise_invalid(const std::string& message, std::uint64_t page = no_page);

template <class T>
T take(Result<T>&& result) {
  if (!result.ok()) raise(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// Seconds; None: without end.
using Seconds = std::optional<double>;
Timeout to_timeout(const Seconds& seconds);

/// Names come from peers, who may send any bytes: what is not UTF-8 is escaped, never an exception.
nb::str to_str(std::string_view text);
nb::bytes to_bytes(std::string_view bytes);
nb::list to_strs(const std::vector<std::string>& texts);
/// The bytes of anything with the buffer protocol; a str raises TypeError, since nobody said which encoding.
std::string from_bytes(nb::handle object, const char* what);

/// Values may be str, bool, int or float.
std::map<std::string, std::string> to_options(const std::optional<nb::dict>& options);

Op to_op(std::string_view name);
std::string_view op_name(Op op);

/// An int as it stands in page lists; raises invalid_argument, naming `what` and the page, unless 0 <= value
/// < 2^64.
std::uint64_t to_u64(nb::handle value, const char* what, std::uint64_t page);
/// repr(value), shortened, for error messages.
std::string shown(nb::handle value);

/// Waits in slices, so that Ctrl-C is seen: calls `wait(time)`, which gives the GIL away, and again while
/// `still_waiting(answer)` holds and there is time. Raises what a signal handler raises.
template <class Wait, class StillWaiting>
auto wait_in_slices(const Timeout& timeout, Wait&& wait, StillWaiting&& still_waiting) {
  constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds(100);
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    std::chrono::nanoseconds now_for = slice;
    bool last = false;
    if (timeout) {
      const auto left = *timeout - (std::chrono::steady_clock::now() - start);
      last = left <= slice;
      if (last) now_for = std::max<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(0));
    }
    auto answer = wait(now_for);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (last || !still_waiting(answer)) return answer;
  }
}

}  // namespace headrace::python
