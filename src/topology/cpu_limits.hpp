// SPDX-License-Identifier: Apache-2.0
// How much of the machine this process may use: a container often has fewer CPUs than it sees.
#pragma once

#include "base/errors.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace {

struct CpuLimits {
  std::vector<unsigned> cpus;  ///< CPUs on which the scheduler may run this thread, ascending
  std::optional<double>
      quota_cpus;  ///< CPU seconds for each second that the control groups grant; nullopt: no limit
};

/// The CPUs of the calling thread: its affinity, which a cpuset group also restricts.
///   errors   those of the system
[[nodiscard]] Result<std::vector<unsigned>> read_affinity();

/// Restricts the calling thread to these CPUs.
///   errors   invalid_argument (none of them may be used), and those of the system
[[nodiscard]] Result<void> set_affinity(std::span<const unsigned> cpus);

/// The tightest quota of this process's control group and its parents, version 2 or 1. `root` is "" on the
/// machine itself.
[[nodiscard]] std::optional<double> read_cpu_quota(const std::string& root);

}  // namespace headrace
