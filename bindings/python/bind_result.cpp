// SPDX-License-Identifier: Apache-2.0
// <headrace/result.hpp>: codes are strings in Python, errors are the exceptions of headrace/errors.py
// (convert.cpp raises them).
#include <headrace/result.hpp>

#include "bindings/python/binding.hpp"

namespace headrace::python {

void bind_result(nb::module_& module) {
  nb::list codes;
  for (int code = 0; code <= static_cast<int>(Code::internal); ++code) {
    const std::string_view name = code_name(static_cast<Code>(code));
    codes.append(nb::str(name.data(), name.size()));
  }
  // Checked in the tests against the classes, so that neither forgets a code.
  module.attr("codes") = nb::tuple(codes);
}

}  // namespace headrace::python
