// SPDX-License-Identifier: Apache-2.0
#include "topology/machine_layout.hpp"

#include <algorithm>
#include <map>

namespace headrace {

void put_in_order(MachineLayout& layout) {
  std::ranges::sort(layout.cpus, {}, &Cpu::id);
  // From the number that a reader gave a core to its rank in the order of lowest CPUs.
  std::map<unsigned, unsigned> core_numbers;
  for (Cpu& cpu : layout.cpus) {
    cpu.core = core_numbers.emplace(cpu.core, static_cast<unsigned>(core_numbers.size())).first->second;
  }
  for (NumaNode& node : layout.nodes) std::ranges::sort(node.cpus);
}

}  // namespace headrace
