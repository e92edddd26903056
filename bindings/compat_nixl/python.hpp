// SPDX-License-Identifier: Apache-2.0
// What the compiled part of headrace.compat.nixl shares. It stands on Python's own C interface and knows
// nothing of Headrace: what it calls of that it is given from Python.
#pragma once

#include <Python.h>

#include <memory>

namespace headrace::compat_nixl {

struct DropReference {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
/// A reference of our own; null: there is none, and mostly an error is set.
using Reference = std::unique_ptr<PyObject, DropReference>;

inline Reference new_reference(PyObject* object) {
  Py_XINCREF(object);
  return Reference(object);
}

/// Adds the type QuickMake. False: an error is set.
bool add_quick_make(PyObject* module);
/// What a list's rows have in common, as _compiled.pyi has it.
PyObject* capture_rows(PyObject* module, PyObject* rows);
/// A list of tuples as words, as _compiled.pyi has it.
PyObject* pack_tuples(PyObject* module, PyObject* list);

}  // namespace headrace::compat_nixl
