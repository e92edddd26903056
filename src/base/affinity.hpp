// SPDX-License-Identifier: Apache-2.0
// The CPUs on which the scheduler may run a thread: a container often has fewer than it sees.
#pragma once

#include "base/errors.hpp"

#include <span>
#include <vector>

namespace headrace {

/// The CPUs of the calling thread, ascending: its affinity, which a cpuset group also restricts.
///   errors   those of the system
[[nodiscard]] Result<std::vector<unsigned>> read_affinity();

/// Restricts the calling thread to these CPUs.
///   errors   invalid_argument (none of them may be used), and those of the system
[[nodiscard]] Result<void> set_affinity(std::span<const unsigned> cpus);

/// How many CPUs the calling thread may use: 1 if that is unknown.
[[nodiscard]] unsigned usable_cores();

}  // namespace headrace
