// SPDX-License-Identifier: Apache-2.0
// headrace.compat.nixl._compiled: the steps of NIXL's calls for which a Python call costs too much (many
// short calls), or a loop in Python or NumPy does (long lists).
#include "bindings/compat_nixl/python.hpp"

namespace headrace::compat_nixl {
namespace {

PyMethodDef functions[] = {
    {"capture_rows", &capture_rows, METH_O,
     "capture_rows($module, rows, /)\n"
     "--\n\n"
     "Copies rows of (address, length, device) in a short form; None if they name several devices.\n\n"
     "rows: a contiguous buffer of three uint64 a row, at least one row. It is not kept.\n"
     "Returns (count, device, address, step, length, addresses, lengths). address, length: those of the\n"
     "first row. step: the distance of neighbouring addresses if all distances and all lengths are equal,\n"
     "else 0. addresses: all addresses as uint64 if step is 0, else None. lengths: all lengths as uint64 if\n"
     "they differ, else None."},
    {"pack_tuples", &pack_tuples, METH_O,
     "pack_tuples($module, rows, /)\n"
     "--\n\n"
     "Packs tuples of (address, length, device) as three uint64 each.\n\n"
     "rows: a list of tuples. Returns None if an item is not a tuple of three ints of 64 bits without a\n"
     "sign; the caller then reads the rows one by one and reports the error."},
    {nullptr, nullptr, 0, nullptr}};

int fill(PyObject* module) { return add_quick_make(module) ? 0 : -1; }

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(&fill)}, {0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "_compiled",
                          "The compiled part of headrace.compat.nixl.",
                          0,
                          functions,
                          slots,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace headrace::compat_nixl

// Python defines this name.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
PyMODINIT_FUNC PyInit__compiled() { return PyModuleDef_Init(&headrace::compat_nixl::definition); }
