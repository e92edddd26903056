// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/c10d/errors.hpp"

#include <exception>
#include <string>

namespace headrace::torch_group {
namespace {

std::string text_of(const Error& error) {
  // torch's users look for the word. headrace._torch.errors adds the same.
  const bool late = error.code == Code::timed_out;
  return error.message + (late ? " (the timeout of the call, or of the group)" : "");
}

void raise_in_python(const Error& error) {
  if (PyErr_Occurred() != nullptr) return;  // a signal handler raised in a wait, which ended the operation
  const py::object exception = python_exception(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
}

}  // namespace

CommError::CommError(headrace::Error error)
    : c10::DistBackendError(text_of(error)), error_(std::move(error)) {}

py::object python_exception(const Error& error) {
  return py::module_::import("headrace._torch.errors")
      .attr("torch_error_of")(std::string(code_name(error.code)), error.message);
}

void translate_errors() {
  // NOLINTNEXTLINE(performance-unnecessary-value-param): the type is pybind11's
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const CommError& error) {
      raise_in_python(error.error());
    }
  });
}

void check_signals() {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace headrace::torch_group
