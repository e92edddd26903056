// SPDX-License-Identifier: Apache-2.0
// How much of the machine this process may use.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct CpuLimits {
  std::vector<unsigned> cpus;  ///< CPUs on which the scheduler may run this thread, ascending
  std::optional<double>
      quota_cpus;  ///< CPU seconds for each second that the control groups grant; nullopt: no limit
};

/// The tightest quota of this process's control group and its parents, version 2 or 1. `root` is "" on the
/// machine itself.
[[nodiscard]] std::optional<double> read_cpu_quota(const std::string& root);

}  // namespace headrace
