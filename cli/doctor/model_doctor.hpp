// SPDX-License-Identifier: Apache-2.0
// `headrace doctor --device D --model M`: checks whether torch and a compiled model work on a device of this
// machine.
#pragma once

#include "cli/command.hpp"

#include <string>

namespace headrace::cli {

struct DeviceExam {
  std::string device;  ///< empty: the model's device, or the CPU
  std::string model;   ///< empty: check the device only
  bool json = false;   ///< print JSON on a terminal too
  [[nodiscard]] bool wanted() const { return !device.empty() || !model.empty(); }
};

/// Checks allocation, random numbers, matrix products and one large operation in float32, float16 and
/// bfloat16, then runs the model once. Prints a table to a terminal and JSON elsewhere, because monitoring
/// programs call this more often than people.
///   errors  backend_failed (a check failed; the output names it), those of model_runtime
[[nodiscard]] Result<void> examine_device(const DeviceExam& exam, const Invocation& invocation);

}  // namespace headrace::cli
