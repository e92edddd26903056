// SPDX-License-Identifier: Apache-2.0
// `headrace doctor --collectives`: what serves communicators on this machine.
#pragma once

#include <headrace/result.hpp>

namespace headrace::cli {

struct Invocation;

/// Opens a communicator of one rank, and prints what was found.
///   errors   those of options; backend_failed (the communicator does not work)
[[nodiscard]] Result<void> survey_collectives(const Invocation& invocation, bool json);

}  // namespace headrace::cli
