// SPDX-License-Identifier: Apache-2.0
// Converts errors, seconds, text, bytes and options between Python and C++.
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

/// The Python exception of an error. Does not raise it.
nb::object to_exception(const Error& error);
[[noreturn]] void raise(const Error& error);
/// Raises invalid_argument with this text and the index of the page that it is about.
[[noreturn]] void raise_invalid(const std::string& message, std::uint64_t page = no_page);

template <class T>
T take(Result<T>&& result) {
  if (!result.ok()) raise(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// What asks whether a wait of Headrace goes on: runs Python's handlers of signals. The exception of one
/// stays set, for take_uninterrupted.
bool interrupted_by_signal();
/// The same as take, of a call with that hook.
template <class T>
auto take_uninterrupted(Result<T>&& result) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return take(std::move(result));
}

/// Seconds; nullopt: no limit.
using Seconds = std::optional<double>;
Timeout to_timeout(const Seconds& seconds);

/// A name from a peer may have any bytes. Bytes that are not UTF-8 are escaped and raise no exception.
nb::str to_str(std::string_view text);
nb::bytes to_bytes(std::string_view bytes);
nb::list to_strs(const std::vector<std::string>& texts);
/// The bytes of an object with the buffer protocol. A str raises TypeError, because its encoding is not
/// known.
std::string from_bytes(nb::handle object, const char* what);

/// Values may be str, bool, int or float.
std::map<std::string, std::string> to_options(const std::optional<nb::dict>& options);

Op to_op(std::string_view name);
std::string_view op_name(Op op);

/// An int of a page list. Raises invalid_argument with `what` and the page unless 0 <= value < 2^64.
std::uint64_t to_u64(nb::handle value, const char* what, std::uint64_t page);
/// repr(value), shortened, for error messages.
std::string shown(nb::handle value);

/// Waits in slices of 100 ms, so that Ctrl-C is noticed. Calls `wait(time)`, which releases the GIL, and
/// calls it again while `still_waiting(answer)` is true and time is left. Raises the exception of a signal
/// handler.
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
