// SPDX-License-Identifier: Apache-2.0
// The machine as Linux describes it in /sys: used if hwloc is missing.
#pragma once

#include "base/errors.hpp"
#include "topology/machine_layout.hpp"

#include <string>

namespace headrace {

/// Reads <root>/sys/devices/system and, on kernels without NUMA, <root>/proc/meminfo. `root` is "" on the
/// machine itself.
///   errors   not_supported (no list of online CPUs), corrupt
[[nodiscard]] Result<MachineLayout> read_sysfs_layout(const std::string& root);

}  // namespace headrace
