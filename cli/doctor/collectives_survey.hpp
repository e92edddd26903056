// SPDX-License-Identifier: Apache-2.0
// What serves communicators here, as findings: torch's binding, backends, variables of launchers.
#pragma once

#include "cli/doctor/machine_probe.hpp"

#include <headrace/comm.hpp>
#include <headrace/comm_backend.hpp>
#include <headrace/comm_tuning.hpp>

#include <string>
#include <vector>

namespace headrace::cli {

/// What the package of Python says of torch, and why it says nothing.
[[nodiscard]] std::vector<Finding> survey_torch(const std::string& python);
[[nodiscard]] std::vector<Finding> survey_launchers(const std::vector<LauncherVariables>& launchers,
                                                    const Result<CommOptions>& launched);
[[nodiscard]] Finding finding_of(const CommBackendInfo& backend);
/// What backend `auto` reads. `path`: that of its file.
[[nodiscard]] Finding finding_of(const Result<CommTuning>& tuning, const std::string& path);

}  // namespace headrace::cli
