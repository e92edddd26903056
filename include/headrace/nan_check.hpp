// SPDX-License-Identifier: Apache-2.0
// Refuses operations on elements that are not numbers.
#pragma once

#include <headrace/comm.hpp>

namespace headrace {

/// Hooks for Comm::add_hooks that refuse a call of this communicator if an element that it reads on this rank
/// is a NaN: invalid_argument, with the operation, the input and the index. Other ranks know nothing of the
/// call. Option `comm.nan_check` (HEADRACE_COMM_NAN_CHECK=1) adds them to every communicator.
///   shapes   floats of all widths and complex numbers; other types have no NaN
///   devices  the host alone: for a communicator on a GPU there are none, and the option logs a warning
///   threads  reads the elements when the operation is called, also if one before it still writes them
[[nodiscard]] HEADRACE_API CommHooks nan_check(const Comm& comm);

}  // namespace headrace
