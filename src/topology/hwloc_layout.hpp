// SPDX-License-Identifier: Apache-2.0
// The machine as hwloc sees it: hwloc knows the firmware and the other architectures better than /sys alone
// shows.
#pragma once

#include "base/errors.hpp"
#include "topology/machine_layout.hpp"
#include "vendor/hwloc/hwloc.hpp"

#include <string>

namespace headrace {

/// Reads this machine, or with `xml_path` a recorded machine (`lstopo machine.xml`).
///   errors   backend_failed (hwloc cannot), not_found (the file)
[[nodiscard]] Result<MachineLayout> read_hwloc_layout(const HwlocTable& hwloc,
                                                      const std::string& xml_path = {});

}  // namespace headrace
