// SPDX-License-Identifier: Apache-2.0
// The machine under this process: its CPUs and memory, what this process may use, and what is close to what.
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

/// A snapshot; immutable, so thread-safe. Reading takes milliseconds: the first user reads it and passes it
/// on.
class Topology {
 public:
  /// Reads this machine with hwloc, or without it from /sys.
  ///   errors   not_supported (neither can be read), corrupt
  [[nodiscard]] static Result<Topology> read();
  /// A recorded machine, for tests. CPUs in `limits` that the machine does not have are dropped.
  Topology(MachineLayout layout, CpuLimits limits, std::string source);

  [[nodiscard]] std::span<const Cpu> cpus() const noexcept { return layout_.cpus; }
  [[nodiscard]] std::span<const NumaNode> nodes() const noexcept { return layout_.nodes; }
  [[nodiscard]] std::size_t packages() const noexcept { return packages_; }
  [[nodiscard]] std::size_t cores() const noexcept { return cores_; }

  /// The CPUs that this process may run on, ascending; never empty.
  [[nodiscard]] std::span<const unsigned> usable_cpus() const noexcept { return usable_cpus_; }
  [[nodiscard]] std::vector<unsigned> usable_cpus_of(unsigned node) const;
  /// The control groups' limit in CPUs; nullopt: none.
  [[nodiscard]] std::optional<double> quota_cpus() const noexcept { return quota_cpus_; }
  /// How many threads can run at once: the usable CPUs, limited to the whole CPUs of the quota, at least 1.
  /// More threads than the quota would only be throttled earlier.
  [[nodiscard]] std::size_t usable_threads() const noexcept;

  /// The node next to a CPU; nullopt for a CPU that is not online.
  [[nodiscard]] std::optional<unsigned> node_of_cpu(unsigned cpu) const;
  /// The relative latency from a node to another node's memory: 10 within a node. If the system does not say
  /// it is 20 between two nodes, as in firmware tables. Nullopt for a node that is not online.
  [[nodiscard]] std::optional<unsigned> distance(unsigned from, unsigned to) const;

  /// The node that holds the page at `address`.
  ///   errors   not_found (the page is not in memory: it has not been touched yet), invalid_argument (not
  ///            mapped), not_supported (the container forbids the system call)
  [[nodiscard]] Result<unsigned> node_of_address(const void* address) const;

  /// The source of the description, for `headrace doctor`: "hwloc", or "/sys" and why hwloc was not used.
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
