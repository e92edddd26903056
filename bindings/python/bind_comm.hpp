// SPDX-License-Identifier: Apache-2.0
// The parts of the class Comm that are bound in files of their own.
#pragma once

#include "bindings/python/comm_handle.hpp"

namespace headrace::python {

using CommClass = nb::class_<PyComm>;

/// Batches, coalesced calls and persistent operations.
void bind_together(nb::module_& module, CommClass& comm);

}  // namespace headrace::python
