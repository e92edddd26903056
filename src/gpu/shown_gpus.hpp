// SPDX-License-Identifier: Apache-2.0
// The GPUs that the CUDA driver shows to this process, as the topology names them.
#pragma once

#include "base/errors.hpp"
#include "vendor/cuda/driver.hpp"

#include <headrace/topology.hpp>

#include <optional>
#include <vector>

namespace headrace::gpu {

/// Nullopt without a driver: /sys then says which GPUs there are. A driver that is there and refuses this
/// process, as with an empty CUDA_VISIBLE_DEVICES, shows it none.
///   driver      what load_driver has returned
///   is_loaded   whether there is a driver library at all
[[nodiscard]] std::optional<std::vector<TopologyGpu>> shown_gpus(const Result<cuda::DriverTable>& driver,
                                                                 bool is_loaded);

}  // namespace headrace::gpu
