// SPDX-License-Identifier: Apache-2.0
// Which NUMA nodes have memory, and which node is next to a device: two questions that do not need the whole
// topology.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace headrace {

/// The nodes with memory, ascending; only 0 if the kernel lists none. `root` is "" on the machine itself.
[[nodiscard]] std::vector<unsigned> read_memory_nodes(const std::string& root);

/// The node next to a PCI device ("0000:1b:00.0", upper or lower case); nullopt if the firmware does not say,
/// as in most virtual machines.
[[nodiscard]] std::optional<unsigned> read_node_of_pci(const std::string& root, std::string device);

}  // namespace headrace
