// SPDX-License-Identifier: Apache-2.0
// What lives in one process is not sent to another: pickle is told what to do instead.
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
