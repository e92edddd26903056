// SPDX-License-Identifier: Apache-2.0
// Windows for Python.
#pragma once

#include <headrace/comm_window.hpp>

#include "bindings/python/comm_handle.hpp"

#include <optional>
#include <utility>

namespace headrace::python {

/// A window, with its communicator. Its end may wait for other ranks, so it is without the GIL.
class PyWindow {
 public:
  PyWindow(nb::object comm, headrace::Window window)
      : comm_(std::move(comm)), window_(std::in_place, std::move(window)) {}
  ~PyWindow() {
    const nb::error_scope keep_error;
    const WithoutGil scope;
    window_.reset();
  }
  PyWindow(const PyWindow&) = delete;
  PyWindow& operator=(const PyWindow&) = delete;

  [[nodiscard]] PyComm& comm() const { return nb::cast<PyComm&>(comm_); }
  [[nodiscard]] headrace::Window& window() { return *window_; }
  /// Returns call(Window&), called without the GIL. Raises its error, and the exception of a signal handler.
  template <class Call>
  auto ask(const Call& call) {
    return comm().ask([&](headrace::Comm&) { return call(*window_); });
  }

 private:
  const nb::object comm_;
  std::optional<headrace::Window> window_;
};

/// Comm.new_window.
nb::object new_window(nb::handle comm, nb::handle tensor);

}  // namespace headrace::python
