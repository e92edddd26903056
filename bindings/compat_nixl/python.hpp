// SPDX-License-Identifier: Apache-2.0
// Shared by the compiled part of headrace.compat.nixl. That part uses Python's C interface only and knows
// nothing of Headrace: Python passes the functions of Headrace that it calls.
#pragma once

#include <Python.h>

#include <memory>

namespace headrace::compat_nixl {

struct DropReference {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
/// An owned reference. Null: no object; usually an error is set.
using Reference = std::unique_ptr<PyObject, DropReference>;

inline Reference new_reference(PyObject* object) {
  Py_XINCREF(object);
  return Reference(object);
}

/// Adds the type QuickMake. False: an error is set.
bool add_quick_make(PyObject* module);
/// See _compiled.pyi.
PyObject* capture_rows(PyObject* module, PyObject* rows);
/// See _compiled.pyi.
PyObject* pack_tuples(PyObject* module, PyObject* list);

}  // namespace headrace::compat_nixl
