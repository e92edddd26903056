// SPDX-License-Identifier: Apache-2.0
// The machine under this process: what it has, what of it we may use, and what is near to what.
#pragma once

#include "base/errors.hpp"
#include "topology/cpu_limits.hpp"
#include "topology/machine_layout.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// A picture taken once; immutable and so thread-safe. Whoever needs it reads it when first asked and passes
/// it on: reading costs milliseconds.
class Topology {
 public:
  /// Reads this machine with hwloc, or without it from /sys.
  ///   errors   not_supported (neither can be read), corrupt
  [[nodiscard]] static Result<Topology> read();
  /// A machine from elsewhere, for tests. CPUs in `limits` that the machine does not have are left out.
  Topology(MachineLayout layout, CpuLimits limits, std::string source);

  [[nodiscard]] std::span<const Cpu> cpus() const noexcept { return layout_.cpus; }
  [[nodiscard]] std::span<const NumaNode> nodes() const noexcept { return layout_.nodes; }
  [[nodiscard]] std::size_t packages() const noexcept { return packages_; }
  [[nodiscard]] std::size_t cores() const noexcept { return cores_; }

  /// The CPUs that this process may run on, ascending; never empty.
  [[nodiscard]] std::span<const unsigned> usable_cpus() const noexcept { return usable_cpus_; }
  [[nodiscard]] std::vector<unsigned> usable_cpus_of(unsigned node) const;
  /// The control groups' limit in CPUs, if there is one.
  [[nodiscard]] std::optional<double> quota_cpus() const noexcept { return quota_cpus_; }
  /// How many threads can run at once: the usable CPUs, but no more than whole CPUs of quota, and at least 1.
  /// A thread beyond the quota would only bring the throttling nearer.
  [[nodiscard]] std::size_t usable_threads() const noexcept;

  /// The node next to a CPU; none for a CPU that is not online.
  [[nodiscard]] std::optional<unsigned> node_of_cpu(unsigned cpu) const;
  /// The relative latency from one node to another's memory: 10 within a node; where the system does not say,
  /// 20 between two, as its firmware tables do. None for a node that is not online.
  [[nodiscard]] std::optional<unsigned> distance(unsigned from, unsigned to) const;

  /// The node on which the page at `address` lies.
  ///   errors   not_found (the page is not in memory: nobody has touched it yet), invalid_argument (not
  ///   mapped),
  ///            not_supported (the container forbids the question)
  [[nodiscard]] Result<unsigned> node_of_address(const void* address) const;

  /// Who described the machine, for `headrace doctor`: "hwloc", or "/sys" and why not hwloc.
  [[nodiscard]] std::string_view source() const noexcept { return source_; }

 private:
  [[nodiscard]] std::optional<std::size_t> index_of(unsigned node) const;

  MachineLayout layout_;
  std::vector<unsigned> usable_cpus_;
  std::optional<double> quota_cpus_;
  std::string source_;
  std::size_t packages_ = 0;
  std::size_t cores_ = 0;
};

}  // namespace headrace
