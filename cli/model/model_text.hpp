// SPDX-License-Identifier: Apache-2.0
// The texts that inspect, infer, verify and `doctor --device` print. Programs get the same facts as JSON.
#pragma once

#include <headrace/model.hpp>

#include "cli/model/model_run.hpp"

#include <string>
#include <vector>

namespace headrace::cli {

/// Inputs, outputs, constants if any are given, and whether the model runs on this machine.
[[nodiscard]] std::string inspect_text(const ModelInfo& info, const std::vector<ConstantInfo>& constants);
/// The outputs and the times.
///   report  as `infer --json` prints it
[[nodiscard]] std::string infer_text(const ModelJson& report);
/// The differences of each output; the last line has the largest.
///   report  as `verify --json` prints it
[[nodiscard]] std::string verify_text(const ModelJson& report);
/// The checks of a device and their results.
///   report  as `doctor --device DEVICE --json` prints it
[[nodiscard]] std::string exam_text(const ModelJson& report);

}  // namespace headrace::cli
