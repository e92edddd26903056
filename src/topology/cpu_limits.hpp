// SPDX-License-Identifier: Apache-2.0
// How much of the machine this process may use: a container often has less than it sees.
#pragma once

#include "base/errors.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace {

struct CpuLimits {
  std::vector<unsigned> cpus;        ///< those the scheduler may put this thread on, ascending
  std::optional<double> quota_cpus;  ///< CPU seconds a second that the control groups grant; none: no limit
};

/// The calling thread's CPUs (affinity, which a cpuset group narrows too).
///   errors   what the system says
[[nodiscard]] Result<std::vector<unsigned>> read_affinity();

/// From now on the calling thread runs on these alone.
///   errors   invalid_argument (none of them may be used), and what the system says
[[nodiscard]] Result<void> set_affinity(std::span<const unsigned> cpus);

/// The tightest quota of this process's control group and those above it, version 2 or 1. `root` is "" on the
/// machine.
[[nodiscard]] std::optional<double> read_cpu_quota(const std::string& root);

}  // namespace headrace
