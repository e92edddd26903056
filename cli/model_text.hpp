// SPDX-License-Identifier: Apache-2.0
// What inspect, infer, verify and `doctor --device` tell people; programs get the same as JSON.
#pragma once

#include <headrace/model.hpp>

#include "cli/model_run.hpp"

#include <string>
#include <vector>

namespace headrace::cli {

/// What goes in and comes out, the constants if they were asked for, and whether it runs here.
[[nodiscard]] std::string inspect_text(const ModelInfo& info, const std::vector<ConstantInfo>& constants);
/// The outputs, and how long what took.
///   report  as `infer --json` prints it
[[nodiscard]] std::string infer_text(const ModelJson& report);
/// Each output's differences; the last line says the largest.
///   report  as `verify --json` prints it
[[nodiscard]] std::string verify_text(const ModelJson& report);
/// What was tried on a device, and what came of it.
///   report  as `doctor --device DEVICE --json` prints it
[[nodiscard]] std::string exam_text(const ModelJson& report);

}  // namespace headrace::cli
