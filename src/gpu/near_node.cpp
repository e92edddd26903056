// SPDX-License-Identifier: Apache-2.0
#include "gpu/near_node.hpp"

#include "gpu/device.hpp"
#include "topology/memory_nodes.hpp"

#include <algorithm>

namespace headrace::gpu {

Result<std::optional<unsigned>> node_near(const cuda::DriverTable& driver, int ordinal,
                                          const std::string& root) {
  HEADRACE_TRY(devices, list_devices(driver));
  const auto found = std::ranges::find(devices, ordinal, &DeviceInfo::ordinal);
  if (found == devices.end())
    return make_error(Code::invalid_argument, "there is no GPU {}: this process sees {}, counted from 0",
                      ordinal, devices.size());
  return read_node_of_pci(root, found->pci);
}

}  // namespace headrace::gpu
