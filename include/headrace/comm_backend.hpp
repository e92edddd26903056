// SPDX-License-Identifier: Apache-2.0
// Backends of communicators that the process brings along.
#pragma once

#include <headrace/plugin/comm_v1.h>
#include <headrace/result.hpp>

namespace headrace {

/// Makes a backend known to Comm::open by the name of its table.
///   owns    the table is copied; its texts and functions stay to the end of the process
///   threads any
///   errors  invalid_argument (the name is taken), not_supported (the table: what is wrong with it)
HEADRACE_API Result<void> register_comm_backend(const headrace_comm_backend_v1* table);

}  // namespace headrace
