// SPDX-License-Identifier: Apache-2.0
// Whether a thread sleeps: a test that wakes a waiting thread first waits until that thread sleeps.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <string>

namespace headrace::test {

/// Whether that thread, of this process or of another one, sleeps in a system call.
inline bool sleeps(pid_t thread) {
  std::ifstream file("/proc/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const auto end_of_name = stat.rfind(')');
  return end_of_name != std::string::npos && stat.size() > end_of_name + 2 && stat[end_of_name + 2] == 'S';
}

}  // namespace headrace::test
