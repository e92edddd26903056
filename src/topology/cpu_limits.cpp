// SPDX-License-Identifier: Apache-2.0
#include "topology/cpu_limits.hpp"

#include "topology/small_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace headrace {
namespace {

/// "200000 100000" is two CPUs, "max 100000" no limit.
std::optional<double> quota_v2(const std::string& group) {
  std::istringstream words(read_small_file(group + "/cpu.max").value_or(""));
  double quota = 0;
  double period = 0;
  if (words >> quota >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

/// A quota of -1 means no limit.
std::optional<double> quota_v1(const std::string& group) {
  double quota = 0;
  double period = 0;
  std::istringstream(read_small_file(group + "/cpu.cfs_quota_us").value_or("")) >> quota;
  std::istringstream(read_small_file(group + "/cpu.cfs_period_us").value_or("")) >> period;
  if (quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

/// The tightest limit of the group and its parents up to the mount. The path may not exist here: a container
/// sees its own group at the mount, but reads its name as outside. The walk continues upward all the same.
template <class Read>
std::optional<double> tightest(const std::string& mount, std::string group, Read read) {
  std::optional<double> least;
  while (!group.empty() && group.back() == '/') group.pop_back();
  for (;;) {
    if (const auto here = read(mount + group); here && (!least || *here < *least)) least = here;
    if (group.empty()) return least;
    const std::size_t slash = group.rfind('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
}

}  // namespace

std::optional<double> read_cpu_quota(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  std::optional<double> least;
  const auto take = [&](std::optional<double> quota) {
    if (quota && (!least || *quota < *least)) least = quota;
  };
  std::istringstream lines(read_small_file(root + "/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    // "0::/group" for version 2, "4:cpu,cpuacct:/group" for version 1
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      take(tightest(mount, group, quota_v2));
    } else if (std::ranges::count(split_list(controllers), std::string_view("cpu")) > 0) {
      take(tightest((mount + "/").append(controllers), group, quota_v1));
      take(tightest(mount + "/cpu", group, quota_v1));
    }
  }
  return least;
}

}  // namespace headrace
