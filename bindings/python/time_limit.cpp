// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/time_limit.hpp"

namespace headrace::python {

std::optional<TimeLimit> TimeLimit::open(nb::handle object) noexcept {
  if (object.is_none()) return TimeLimit{};
  nb::object number = nb::borrow(object);
  if (PyFloat_Check(object.ptr()) == 0 && PyLong_Check(object.ptr()) == 0)
    number = nb::steal(PyObject_CallMethod(object.ptr(), "total_seconds", nullptr));
  const double seconds = number.is_valid() ? PyFloat_AsDouble(number.ptr()) : -1;
  if (PyErr_Occurred() == nullptr) return TimeLimit{seconds};
  PyErr_Clear();
  return std::nullopt;
}

}  // namespace headrace::python
