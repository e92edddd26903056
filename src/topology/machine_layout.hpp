// SPDX-License-Identifier: Apache-2.0
// Which CPUs and memories a machine has and how far apart they are, as read from whatever source knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

/// A hardware thread.
struct Cpu {
  unsigned id = 0;       ///< the system's number, as in /proc/cpuinfo
  unsigned core = 0;     ///< counted over the machine from 0, in the order of each core's lowest CPU
  unsigned package = 0;  ///< the system's number of its socket

  friend bool operator==(const Cpu&, const Cpu&) = default;
};

/// A memory and the CPUs next to it. There are nodes without CPUs (memory expanders) and without memory.
struct NumaNode {
  unsigned id = 0;             ///< the system's number, as in /sys/devices/system/node
  std::vector<unsigned> cpus;  ///< ascending
  std::uint64_t memory_bytes = 0;

  friend bool operator==(const NumaNode&, const NumaNode&) = default;
};

/// Everything that is online, whether or not this process may use it.
struct MachineLayout {
  std::vector<Cpu> cpus;        ///< by ascending id; at least one
  std::vector<NumaNode> nodes;  ///< by ascending id; at least one
  /// distances[i][j]: relative latency from nodes[i] to nodes[j], 10 for a node's own memory. Empty where
  /// unknown.
  std::vector<std::vector<unsigned>> distances;

  friend bool operator==(const MachineLayout&, const MachineLayout&) = default;
};

/// Puts a layout's lists into the order that they promise and counts its cores; readers call it last.
void put_in_order(MachineLayout& layout);

}  // namespace headrace
