// SPDX-License-Identifier: Apache-2.0
// The NUMA node whose memory a GPU reaches without crossing to another socket.
#pragma once

#include "base/errors.hpp"
#include "vendor/cuda/driver.hpp"

#include <optional>
#include <string>

namespace headrace::gpu {

/// Nullopt if the firmware does not say. `root` is "" on the machine itself.
///   errors   invalid_argument (no such GPU: how many there are)
[[nodiscard]] Result<std::optional<unsigned>> node_near(const cuda::DriverTable& driver, int ordinal,
                                                        const std::string& root = "");

}  // namespace headrace::gpu
