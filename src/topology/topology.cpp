// SPDX-License-Identifier: Apache-2.0
#include "topology/topology.hpp"

#include "base/affinity.hpp"
#include "topology/hwloc_layout.hpp"
#include "topology/sysfs_layout.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <set>

namespace headrace {
namespace {

Result<MachineLayout> read_with_hwloc() {
  HEADRACE_TRY(hwloc, load_hwloc());
  return read_hwloc_layout(hwloc);
}

/// Asks for the node of a page. Unlike get_mempolicy it does not bring the page into memory. A negative errno
/// if the page is on no node.
Result<int> ask_move_pages(const void* address) {
  // Without target nodes move_pages moves nothing and fills in the node of each page.
  const void* page = address;
  int status = -1;
  if (::syscall(SYS_move_pages, 0, 1UL, &page, nullptr, &status, 0) == 0) return status;
  return os_error(errno, "ask for the NUMA node of {}", address);
}

}  // namespace

Result<Topology> Topology::read() {
  HEADRACE_TRY(cpus, read_affinity());
  CpuLimits limits{std::move(cpus), read_cpu_quota("")};
  Result<MachineLayout> seen = read_with_hwloc();
  if (seen) return Topology(*std::move(seen), std::move(limits), "hwloc");
  HEADRACE_TRY(layout, read_sysfs_layout(""));
  return Topology(std::move(layout), std::move(limits), "/sys (" + seen.error().message + ")");
}

Topology::Topology(MachineLayout layout, CpuLimits limits, std::string source)
    : layout_(std::move(layout)), quota_cpus_(limits.quota_cpus), source_(std::move(source)) {
  std::set<unsigned> packages;
  for (const Cpu& cpu : layout_.cpus) {
    packages.insert(cpu.package);
    cores_ = std::max<std::size_t>(cores_, cpu.core + 1);
    if (std::ranges::binary_search(limits.cpus, cpu.id)) usable_cpus_.push_back(cpu.id);
  }
  packages_ = packages.size();
  // If the machine's description and the scheduler disagree completely, the scheduler is right: this thread
  // runs.
  if (usable_cpus_.empty()) usable_cpus_ = std::move(limits.cpus);
}

std::vector<unsigned> Topology::usable_cpus_of(unsigned node) const {
  std::vector<unsigned> both;
  if (const auto index = index_of(node)) {
    std::ranges::set_intersection(layout_.nodes[*index].cpus, usable_cpus_, std::back_inserter(both));
  }
  return both;
}

std::size_t Topology::usable_threads() const noexcept {
  const std::size_t cpus = std::max<std::size_t>(usable_cpus_.size(), 1);
  if (!quota_cpus_) return cpus;
  return std::clamp<std::size_t>(static_cast<std::size_t>(*quota_cpus_), 1, cpus);
}

std::optional<unsigned> Topology::node_of_cpu(unsigned cpu) const {
  for (const NumaNode& node : layout_.nodes) {
    if (std::ranges::binary_search(node.cpus, cpu)) return node.id;
  }
  return std::nullopt;
}

std::optional<std::size_t> Topology::index_of(unsigned node) const {
  const auto found = std::ranges::find(layout_.nodes, node, &NumaNode::id);
  if (found == layout_.nodes.end()) return std::nullopt;
  return static_cast<std::size_t>(found - layout_.nodes.begin());
}

std::optional<unsigned> Topology::distance(unsigned from, unsigned to) const {
  const auto i = index_of(from);
  const auto j = index_of(to);
  if (!i || !j) return std::nullopt;
  if (!layout_.distances.empty()) return layout_.distances[*i][*j];
  return from == to ? 10U : 20U;
}

Result<unsigned> Topology::node_of_address(const void* address) const {
  const Result<int> answer = ask_move_pages(address);
  if (!answer) {
    if (layout_.nodes.size() == 1) return layout_.nodes.front().id;  // a single node needs no question
    return answer.error();
  }
  if (*answer >= 0) return static_cast<unsigned>(*answer);
  if (*answer == -ENOENT) {
    return make_error(Code::not_found,
                      "the page at {} is not in memory: touch it before asking for its NUMA node", address);
  }
  return os_error(Code::invalid_argument, -*answer, "ask for the NUMA node of {}", address);
}

}  // namespace headrace
