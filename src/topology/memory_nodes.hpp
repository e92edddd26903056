// SPDX-License-Identifier: Apache-2.0
// Which NUMA nodes have memory, and which of them lies next to a device: two questions that need no picture
// of the whole machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace headrace {

/// The nodes with memory, ascending; only 0 on a kernel that tells of none. `root` is "" on the machine.
[[nodiscard]] std::vector<unsigned> read_memory_nodes(const std::string& root);

/// The node next to a PCI device ("0000:1b:00.0", in any case of letters); none where the firmware does not
/// say, as in most virtual machines.
[[nodiscard]] std::optional<unsigned> read_node_of_pci(const std::string& root, std::string device);

}  // namespace headrace
