// SPDX-License-Identifier: Apache-2.0
// <headrace/result.hpp>. In Python codes are strings, and errors are the exceptions of headrace/errors.py,
// which convert.cpp raises.
#include <headrace/result.hpp>

#include "bindings/python/binding.hpp"

namespace headrace::python {

void bind_result(nb::module_& module) {
  nb::list codes;
  for (int code = 0; code <= static_cast<int>(Code::internal); ++code) {
    const std::string_view name = code_name(static_cast<Code>(code));
    codes.append(nb::str(name.data(), name.size()));
  }
  // A test compares them with the classes, so that none is forgotten.
  module.attr("codes") = nb::tuple(codes);
}

}  // namespace headrace::python
