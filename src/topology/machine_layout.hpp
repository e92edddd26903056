// SPDX-License-Identifier: Apache-2.0
// The CPUs and memories of a machine and the distances between them, from any source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

/// A hardware thread.
struct Cpu {
  unsigned id = 0;       ///< number of the system, as in /proc/cpuinfo
  unsigned core = 0;     ///< counted from 0 over the machine, in the order of each core's lowest CPU
  unsigned package = 0;  ///< number of the system for its socket

  friend bool operator==(const Cpu&, const Cpu&) = default;
};

/// A NUMA node: a memory and the CPUs next to it. Some nodes have no CPUs (memory expanders), some have no
/// memory.
struct NumaNode {
  unsigned id = 0;             ///< number of the system, as in /sys/devices/system/node
  std::vector<unsigned> cpus;  ///< ascending
  std::uint64_t memory_bytes = 0;

  friend bool operator==(const NumaNode&, const NumaNode&) = default;
};

/// Everything that is online, even if this process may not use it.
struct MachineLayout {
  std::vector<Cpu> cpus;        ///< by ascending id; at least one
  std::vector<NumaNode> nodes;  ///< by ascending id; at least one
  /// distances[i][j]: relative latency from nodes[i] to nodes[j]; 10 for a node's own memory. Empty if
  /// unknown.
  std::vector<std::vector<unsigned>> distances;

  friend bool operator==(const MachineLayout&, const MachineLayout&) = default;
};

/// Sorts the lists as their comments promise and numbers the cores; every reader calls it last.
void put_in_order(MachineLayout& layout);

}  // namespace headrace
