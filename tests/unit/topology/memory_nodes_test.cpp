// SPDX-License-Identifier: Apache-2.0
#include "topology/memory_nodes.hpp"

#include "unit/topology/recorded_machine.hpp"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using test::RecordedMachine;
using Numbers = std::vector<unsigned>;

TEST(MemoryNodes, OnlyNodesWithMemoryAreListed) {
  RecordedMachine machine("two_sockets");
  EXPECT_EQ(read_memory_nodes(machine.root()), (Numbers{0, 1}));
  machine.append("/sys/devices/system/node/has_memory", "1");
  EXPECT_EQ(read_memory_nodes(machine.root()), Numbers{1});
}

TEST(MemoryNodes, AKernelWithoutNumaHasOneMemoryNode) {
  const RecordedMachine machine;
  EXPECT_EQ(read_memory_nodes(machine.root()), Numbers{0});
}

TEST(MemoryNodes, ADeviceIsNearTheNodeThatTheFirmwareNames) {
  RecordedMachine machine("two_sockets");
  machine.append("/sys/bus/pci/devices/0000:1b:00.0/numa_node", "1");
  machine.append("/sys/bus/pci/devices/0000:1c:00.0/numa_node", "-1");
  EXPECT_EQ(read_node_of_pci(machine.root(), "0000:1B:00.0"), 1U);
  EXPECT_EQ(read_node_of_pci(machine.root(), "0000:1c:00.0"), std::nullopt);
  EXPECT_EQ(read_node_of_pci(machine.root(), "0000:1d:00.0"), std::nullopt);
}

}  // namespace
}  // namespace headrace
