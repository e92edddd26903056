// SPDX-License-Identifier: Apache-2.0
#include "topology/cpu_limits.hpp"

#include "topology/small_file.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <sstream>

namespace headrace {
namespace {

using Mask = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>;

Mask make_mask(int bits) {
  return {CPU_ALLOC(bits), [](cpu_set_t* set) { CPU_FREE(set); }};
}

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
  const double quota = std::atof(read_small_file(group + "/cpu.cfs_quota_us").value_or("").c_str());
  const double period = std::atof(read_small_file(group + "/cpu.cfs_period_us").value_or("").c_str());
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

Result<std::vector<unsigned>> read_affinity() {
  // The kernel refuses a mask smaller than its own; the search ends at 2^20 CPUs.
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    const Mask mask = make_mask(bits);
    if (!mask) return make_error(Code::exhausted, "no memory for a mask of {} CPUs", bits);
    const std::size_t size = CPU_ALLOC_SIZE(bits);
    if (::sched_getaffinity(0, size, mask.get()) == 0) {
      std::vector<unsigned> cpus;
      for (int cpu = 0; cpu < bits; ++cpu) {
        if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size, mask.get()))
          cpus.push_back(static_cast<unsigned>(cpu));
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return os_error(errno, "read the CPUs that this process may use");
}

Result<void> set_affinity(std::span<const unsigned> cpus) {
  if (cpus.empty()) return make_error(Code::invalid_argument, "a thread needs a CPU to run on");
  const int bits = static_cast<int>(std::ranges::max(cpus)) + 1;
  const Mask mask = make_mask(bits);
  if (!mask) return make_error(Code::exhausted, "no memory for a mask of {} CPUs", bits);
  const std::size_t size = CPU_ALLOC_SIZE(bits);
  CPU_ZERO_S(size, mask.get());
  for (const unsigned cpu : cpus) CPU_SET_S(cpu, size, mask.get());
  if (::sched_setaffinity(0, size, mask.get()) == 0) return {};
  return os_error(errno, "let a thread run on {} CPUs, the first of them {}", cpus.size(), cpus.front());
}

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
