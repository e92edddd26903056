// SPDX-License-Identifier: Apache-2.0
#include "topology/machine_layout.hpp"

#include <algorithm>
#include <map>

namespace headrace {

void put_in_order(MachineLayout& layout) {
  std::ranges::sort(layout.cpus, {}, &Cpu::id);
  std::map<unsigned, unsigned>
      core_numbers;  // the reader's mark of a core -> its place in the order of lowest CPUs
  for (Cpu& cpu : layout.cpus) {
    cpu.core = core_numbers.emplace(cpu.core, static_cast<unsigned>(core_numbers.size())).first->second;
  }
  for (NumaNode& node : layout.nodes) std::ranges::sort(node.cpus);
}

}  // namespace headrace
