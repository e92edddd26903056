// SPDX-License-Identifier: Apache-2.0
// The cores on which the scheduler may run this thread.
#pragma once

#include <sched.h>

#include <vector>

namespace headrace::cli {

/// Their numbers, ascending; empty if the system does not say.
inline std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> found;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return found;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) found.push_back(core);
  return found;
}

}  // namespace headrace::cli
