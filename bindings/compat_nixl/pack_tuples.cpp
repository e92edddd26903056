// SPDX-License-Identifier: Apache-2.0
// Programs without NumPy describe memory by lists of tuples, one a block: hundreds of thousands of small
// objects. An iterator of Python takes twice as long to read them as this loop.
#include "bindings/compat_nixl/python.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace::compat_nixl {
namespace {

constexpr Py_ssize_t width = 3;

/// False if the value is not an int of 64 bits without a sign; no error is set.
bool take_integer(PyObject* value, std::uint64_t& into) {
  if (value == nullptr || !PyLong_CheckExact(value)) return false;
  into = PyLong_AsUnsignedLongLong(value);
  if (into != UINT64_MAX || PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

/// This runs no Python code, so that the list cannot change during the loop.
bool pack(PyObject* list, char* words) {
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    PyObject* const row = PyList_GetItem(list, i);
    if (!PyTuple_CheckExact(row) || PyTuple_Size(row) != width) return false;
    for (Py_ssize_t column = 0; column < width; ++column, words += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      if (!take_integer(PyTuple_GetItem(row, column), word)) return false;
      std::memcpy(words, &word, sizeof word);
    }
  }
  return true;
}

}  // namespace

PyObject* pack_tuples(PyObject* /*module*/, PyObject* list) {
  if (!PyList_Check(list))
    return PyErr_Format(PyExc_TypeError, "rows must be a list of tuples, not %R", list);
  const auto row_bytes = width * static_cast<Py_ssize_t>(sizeof(std::uint64_t));
  Reference words(PyBytes_FromStringAndSize(nullptr, PyList_Size(list) * row_bytes));
  if (!words) return nullptr;
  if (!pack(list, PyBytes_AsString(words.get()))) Py_RETURN_NONE;
  return words.release();
}

}  // namespace headrace::compat_nixl
