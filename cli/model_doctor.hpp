// SPDX-License-Identifier: Apache-2.0
// `headrace doctor --device D --model M`: whether torch and a compiled model work on a device of this
// machine.
#pragma once

#include "cli/command.hpp"

#include <string>

namespace headrace::cli {

struct DeviceExam {
  std::string device;  ///< empty: the model's, or the CPU
  std::string model;   ///< empty: the device alone
  bool json = false;   ///< on a terminal too
  [[nodiscard]] bool wanted() const { return !device.empty() || !model.empty(); }
};

/// Allocation, random numbers, matrix products and one large operation in float32, float16 and bfloat16, then
/// the model once. Prints JSON, and to a terminal a table: a program that looks after machines calls this
/// oftener than people do.
///   errors  backend_failed (something failed: what is printed says what), as model_runtime
[[nodiscard]] Result<void> examine_device(const DeviceExam& exam, const Invocation& invocation);

}  // namespace headrace::cli
