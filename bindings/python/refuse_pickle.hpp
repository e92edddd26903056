// SPDX-License-Identifier: Apache-2.0
// Refuses pickle for objects that are valid in one process only; the error says what to do instead.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace::python {

/// A `__reduce__` that raises TypeError with this sentence.
inline auto refuse_pickle(const char* sentence) {
  return [sentence](nanobind::handle) -> nanobind::object {
    PyErr_SetString(PyExc_TypeError, sentence);
    throw nanobind::python_error();
  };
}

}  // namespace headrace::python
