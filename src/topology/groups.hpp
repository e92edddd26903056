// SPDX-License-Identifier: Apache-2.0
// Groups of a machine: each GPU, and each NUMA node without one, with its network cards and CPUs.
#pragma once

#include "topology/nics.hpp"
#include "topology/topology.hpp"

#include <headrace/topology.hpp>

#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct SeenGpus {
  /// All of the machine, by address: cards are dealt to each, so that processes with a GPU each do not take
  /// the same card.
  std::vector<PciDevice> all;
  std::vector<TopologyGpu> shown;  ///< those that this process can use: they get groups
};

/// The GPUs of /sys. `by_driver` are those that the CUDA driver lists for this process; nullopt: it was not
/// asked, or it is not there.
[[nodiscard]] SeenGpus read_gpus(const std::string& root,
                                 std::optional<std::vector<TopologyGpu>> by_driver = std::nullopt);

/// The CPUs of a machine from /sys. If /sys does not tell, one node has those of `limits`.
[[nodiscard]] Topology read_cpus(const std::string& root, CpuLimits limits);
/// The same with all CPUs usable.
[[nodiscard]] Topology read_all_cpus(const std::string& root);

[[nodiscard]] DetectedTopology make_groups(const Topology& cpus, SeenGpus gpus, NicList nics);

}  // namespace headrace
