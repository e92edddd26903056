// SPDX-License-Identifier: Apache-2.0
// headrace.compat.nixl._compiled: the steps of NIXL's calls that are too short for a frame of Python, or too
// long for its loops and NumPy's.
#include "bindings/compat_nixl/python.hpp"

namespace headrace::compat_nixl {
namespace {

PyMethodDef functions[] = {
    {"capture_rows", &capture_rows, METH_O,
     "capture_rows($module, rows, /)\n--\n\n"
     "What rows of (address, length, device) are, kept as short as they can be; None if they lie on several "
     "devices.\n\n"
     "rows: a contiguous buffer of three uint64 each, at least one. Nothing of it is kept.\n"
     "Returns (count, device, address, step, length, addresses, lengths): address and length are those of "
     "the first row. step: "
     "how far\napart neighbours begin, if that is the same all along and so is their length; else 0, and "
     "`addresses` has them "
     "as uint64.\n`lengths` has the lengths as uint64 if they differ, else it is None."},
    {"pack_tuples", &pack_tuples, METH_O,
     "pack_tuples($module, rows, /)\n--\n\n"
     "Tuples of (address, length, device) as three uint64 each; None if one is anything else than a tuple of "
     "three plain integers that fit.\n\n"
     "rows: a list of them. What is wrong with one is not said: whoever goes through them by itself finds "
     "it."},
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

// The name is Python's choice.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" PyMODINIT_FUNC PyInit__compiled() { return PyModuleDef_Init(&headrace::compat_nixl::definition); }
