// SPDX-License-Identifier: Apache-2.0
// Copies by the driver between the steps of an operation.
#pragma once

#include "vendor/cuda/driver.hpp"

#include <headrace/plugin/comm_v1.h>
#include <headrace/plugin/kernels/collectives_v1.h>

#include <cstdint>

namespace headrace::p2p {

/// Whether some elements of a call have so many bytes. No part of it is longer than they are.
[[nodiscard]] bool has_elements_of(const headrace_comm_call_v1& call, std::uint64_t bytes);

/// Queues copies on a stream, for copy engines where the driver takes that wish. The device's context is
/// current.
[[nodiscard]] cuda::Outcome queue_copies(const cuda::DriverTable& driver,
                                         headrace_collectives_copies_v1& copies, cuda::Stream stream,
                                         bool captured);

}  // namespace headrace::p2p
