// SPDX-License-Identifier: Apache-2.0
#include "topology/cpu_list.hpp"
#include "topology/hwloc_layout.hpp"
#include "topology/sysfs_layout.hpp"

#include "unit/topology/recorded_machine.hpp"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using test::RecordedMachine;
using Numbers = std::vector<unsigned>;

TEST(CpuList, RangesAndSingleNumbersAreRead) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11\n").value(), (Numbers{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5,1-2,2").value(), (Numbers{1, 2, 5}));
  EXPECT_EQ(parse_cpu_list("").value(), Numbers{});
}

TEST(CpuList, ATextThatIsNoListIsCorrupt) {
  for (const char* wrong : {"a", "3-1", "1-", "-1", "0-99999999", "1-2-3"}) {
    EXPECT_EQ(parse_cpu_list(wrong).code(), Code::corrupt) << wrong;
  }
}

TEST(SysfsLayout, ATwoSocketMachineHasItsCoresMemoriesAndDistances) {
  const RecordedMachine machine("two_sockets");
  const MachineLayout layout = read_sysfs_layout(machine.root()).value();
  ASSERT_EQ(layout.cpus.size(), 16U);
  EXPECT_EQ(layout.cpus[3], (Cpu{3, 3, 0}));
  EXPECT_EQ(layout.cpus[4], (Cpu{4, 4, 1}));
  EXPECT_EQ(layout.cpus[11], (Cpu{11, 3, 0}));  // the other thread of core 3
  ASSERT_EQ(layout.nodes.size(), 2U);
  EXPECT_EQ(layout.nodes[1].cpus, (Numbers{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(layout.nodes[0].memory_bytes, 131891268ULL * 1024);
  EXPECT_EQ(layout.distances, (std::vector<Numbers>{{10, 21}, {21, 10}}));
}

TEST(SysfsLayout, AVirtualMachineHasACoreForEachCpu) {
  const RecordedMachine machine("one_socket_vm");
  const MachineLayout layout = read_sysfs_layout(machine.root()).value();
  ASSERT_EQ(layout.cpus.size(), 16U);
  for (unsigned i = 0; i < 16; ++i) EXPECT_EQ(layout.cpus[i], (Cpu{i, i, 0}));
  ASSERT_EQ(layout.nodes.size(), 1U);
  EXPECT_EQ(layout.nodes[0].cpus.size(), 16U);
}

TEST(SysfsLayout, AnOfflineCpuIsLeftOut) {
  RecordedMachine machine("two_sockets");
  machine.replace("/sys/devices/system/cpu/online", "0-6,8-15");
  machine.replace("/sys/devices/system/cpu/cpu15/topology/core_cpus_list", "15");
  const MachineLayout layout = read_sysfs_layout(machine.root()).value();
  EXPECT_EQ(layout.cpus.size(), 15U);
  EXPECT_EQ(layout.cpus.back(), (Cpu{15, 7, 1}));
}

TEST(SysfsLayout, TheSiblingsFileOfOlderKernelsIsRead) {
  RecordedMachine machine("two_sockets");
  for (unsigned cpu = 0; cpu < 16; ++cpu) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology";
    machine.remove(folder + "/core_cpus_list");
    const std::string low = std::to_string(cpu % 8);
    machine.append(folder + "/thread_siblings_list", low + "," + std::to_string(cpu % 8 + 8));
  }
  EXPECT_EQ(read_sysfs_layout(machine.root())->cpus[11], (Cpu{11, 3, 0}));
}

TEST(SysfsLayout, AKernelWithoutNumaHasOneNodeWithAllCpus) {
  RecordedMachine machine("two_sockets");
  machine.remove("/sys/devices/system/node");
  machine.append("/proc/meminfo", "MemTotal:       2048 kB");
  const MachineLayout layout = read_sysfs_layout(machine.root()).value();
  ASSERT_EQ(layout.nodes.size(), 1U);
  EXPECT_EQ(layout.nodes[0].cpus.size(), 16U);
  EXPECT_EQ(layout.nodes[0].memory_bytes, 2048U * 1024);
  EXPECT_TRUE(layout.distances.empty());
}

TEST(SysfsLayout, MemoryWithoutCpusIsANode) {
  RecordedMachine machine("two_sockets");
  machine.replace("/sys/devices/system/node/online", "0-2");
  machine.append("/sys/devices/system/node/node2/cpulist", "");
  machine.append("/sys/devices/system/node/node2/meminfo", "Node 2 MemTotal: 64 kB");
  machine.append("/sys/devices/system/node/node2/distance", "14 24 10");
  machine.replace("/sys/devices/system/node/node0/distance", "10 21 14");
  machine.replace("/sys/devices/system/node/node1/distance", "21 10 24");
  const MachineLayout layout = read_sysfs_layout(machine.root()).value();
  ASSERT_EQ(layout.nodes.size(), 3U);
  EXPECT_TRUE(layout.nodes[2].cpus.empty());
  EXPECT_EQ(layout.distances[2], (Numbers{14, 24, 10}));
}

TEST(SysfsLayout, AMissingOrContradictoryFileIsAnErrorAndAMalformedOneIsNamed) {
  const RecordedMachine nothing;
  EXPECT_EQ(read_sysfs_layout(nothing.root()).code(), Code::not_supported);
  RecordedMachine machine("two_sockets");
  machine.replace("/sys/devices/system/node/node1/distance", "21");
  EXPECT_EQ(read_sysfs_layout(machine.root()).code(), Code::corrupt);
  machine.replace("/sys/devices/system/cpu/online", "all");
  const auto refused = read_sysfs_layout(machine.root());
  EXPECT_EQ(refused.code(), Code::corrupt);
  EXPECT_NE(refused.error().message.find("/cpu/online: \"all\""), std::string::npos)
      << refused.error().message;
}

TEST(HwlocLayout, TheXmlGivesTheSameLayoutAsSys) {
  const HwlocTable hwloc = load_hwloc().value();
  const RecordedMachine machine("two_sockets");
  const MachineLayout from_xml =
      read_hwloc_layout(hwloc, HEADRACE_TEST_DIR "/fixtures/topology/two_sockets.xml").value();
  EXPECT_EQ(from_xml, read_sysfs_layout(machine.root()).value());
}

TEST(HwlocLayout, HwlocAgreesWithSysOnThisMachine) {
  const MachineLayout by_hwloc = read_hwloc_layout(load_hwloc().value()).value();
  const MachineLayout by_sys = read_sysfs_layout("").value();
  EXPECT_EQ(by_hwloc.cpus, by_sys.cpus);
  ASSERT_EQ(by_hwloc.nodes.size(), by_sys.nodes.size());
  for (std::size_t i = 0; i < by_sys.nodes.size(); ++i) {
    EXPECT_EQ(by_hwloc.nodes[i].id, by_sys.nodes[i].id);
    EXPECT_EQ(by_hwloc.nodes[i].cpus, by_sys.nodes[i].cpus);
  }
}

TEST(HwlocLayout, AFileThatIsMissingOrNoXmlIsAnError) {
  const HwlocTable hwloc = load_hwloc().value();
  EXPECT_FALSE(read_hwloc_layout(hwloc, "/nonexistent.xml").ok());
  EXPECT_FALSE(read_hwloc_layout(hwloc, HEADRACE_TEST_DIR "/fixtures/topology/two_sockets.sysfs").ok());
}

}  // namespace
}  // namespace headrace
