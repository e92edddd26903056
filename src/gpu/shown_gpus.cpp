// SPDX-License-Identifier: Apache-2.0
#include "gpu/shown_gpus.hpp"

#include "gpu/device.hpp"

namespace headrace::gpu {

std::optional<std::vector<TopologyGpu>> shown_gpus(const Result<cuda::DriverTable>& driver, bool is_loaded) {
  if (!driver && !is_loaded) return std::nullopt;
  std::vector<TopologyGpu> gpus;
  if (!driver) return gpus;
  const auto devices = list_devices(*driver);
  if (!devices) return gpus;
  for (const DeviceInfo& device : *devices) gpus.push_back({device.pci, device.ordinal, device.name});
  return gpus;
}

}  // namespace headrace::gpu
