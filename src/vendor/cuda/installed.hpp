// SPDX-License-Identifier: Apache-2.0
// Whether there is a driver at all, as opposed to one that refuses this process.
#pragma once

namespace headrace::cuda {

/// Whether libcuda.so.1 is loaded: true after load_driver has found it, also if it then returned an error.
[[nodiscard]] bool is_driver_loaded();

}  // namespace headrace::cuda
