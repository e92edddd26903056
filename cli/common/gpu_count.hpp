// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headrace::cli {

/// The number of GPUs; 0 without a driver.
[[nodiscard]] int count_gpus();

}  // namespace headrace::cli
