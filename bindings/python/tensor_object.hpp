// SPDX-License-Identifier: Apache-2.0
// The Python class Tensor.
#pragma once

#include <headrace/tensor.hpp>

#include "bindings/python/interpreter.hpp"

namespace headrace::python {

/// A tensor as a Python object, with the buffer protocol and DLPack.
nb::object tensor_object(Tensor tensor);

}  // namespace headrace::python
