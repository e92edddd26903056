// SPDX-License-Identifier: Apache-2.0
#include "topology/groups.hpp"

#include "topology/small_file.hpp"
#include "unit/topology/machine_tree.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

using test::MachineTree;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Words = std::vector<std::string>;
using Cpus = std::vector<unsigned>;

/// A device behind port `port` of the switch under root port `root`: 16 buses for each switch.
std::string in_switch(unsigned root, unsigned port) {
  const unsigned bus = root * 16;
  return fmt::format(
      "pci0000:{0:02x}/0000:{0:02x}:01.0/0000:{1:02x}:00.0/0000:{2:02x}:{3:02x}.0/0000:{4:02x}:00.0", bus,
      bus + 1, bus + 2, port, bus + 3 + port);
}

std::string address_in(unsigned root, unsigned port) {
  const std::string path = in_switch(root, port);
  return path.substr(path.rfind('/') + 1);
}

/// A device on a root port of its own of the root complex `root`.
std::string on_root_port(unsigned root, unsigned port) {
  return fmt::format("pci0000:{0:02x}/0000:{0:02x}:{1:02x}.0/0000:{2:02x}:00.0", root * 16, port + 2,
                     root * 16 + 8 + port);
}

DetectedTopology detect(const MachineTree& machine) {
  return make_groups(read_all_cpus(machine.root()), read_gpus(machine.root()), read_nics(machine.root()));
}

/// What the driver lists for a process.
DetectedTopology detect(const MachineTree& machine, std::vector<TopologyGpu> by_driver) {
  return make_groups(read_all_cpus(machine.root()), read_gpus(machine.root(), std::move(by_driver)),
                     read_nics(machine.root()));
}

Words names_of(const TopologyGroup& group) {
  Words names;
  for (const TopologyNic& nic : group.nics) names.push_back(nic.name);
  return names;
}

/// "GPU address or node: cards", a line for each group.
Words lines_of(const DetectedTopology& found) {
  Words lines;
  for (const TopologyGroup& group : found.groups) {
    std::string line = group.gpu ? group.gpu->pci : fmt::format("node {}", group.numa_node.value_or(99));
    for (const std::string& name : names_of(group)) line += " " + name;
    lines.push_back(line);
  }
  return lines;
}

Words left_out_of(const DetectedTopology& found) {
  Words lines;
  for (const LeftOutNic& left : found.left_out) lines.push_back(left.nic.name + ": " + left.reason);
  return lines;
}

/// Eight switches, four a node, each with a GPU and a card.
struct EightGpus : MachineTree {
  EightGpus() : MachineTree(2, 16) {
    for (unsigned i = 0; i < 8; ++i) {
      const std::string node = i < 4 ? "0" : "1";
      gpu(in_switch(i + 1, 0), node);
      rdma(fmt::format("mlx5_{}", i), {.path = in_switch(i + 1, 1), .node = node});
    }
  }
};

TEST(TopologyGroups, EightGpusHaveTheCardsOfTheirSwitchesAndTwoOddOnesAreNamed) {
  EightGpus machine;
  machine.rdma("mlx5_8", {.path = on_root_port(1, 1), .device = "0x101b", .rate = "200 Gb/sec (4X HDR)"});
  machine.rdma("mlx5_9",
               {.path = on_root_port(5, 1), .node = "1", .device = "0x101b", .rate = "200 Gb/sec (4X HDR)"});
  const DetectedTopology found = detect(machine);
  Words wanted;
  for (unsigned i = 0; i < 8; ++i) wanted.push_back(fmt::format("{} mlx5_{}", address_in(i + 1, 0), i));
  EXPECT_EQ(lines_of(found), wanted);
  EXPECT_THAT(left_out_of(found),
              ElementsAre("mlx5_8: it is of model 15b3:101b, and 8 others are of model 15b3:1021",
                          "mlx5_9: it is of model 15b3:101b, and 8 others are of model 15b3:1021"));
  const TopologyGroup& last = found.groups.back();
  EXPECT_EQ(last.numa_node, 1U);
  EXPECT_EQ(last.cpus.size(), 16U);
  EXPECT_EQ(last.own_cpus, (Cpus{28, 29, 30, 31}));
  EXPECT_EQ(last.nics.front(), (TopologyNic{.name = "mlx5_7",
                                            .interfaces = {},
                                            .rdma = true,
                                            .link_layer = "InfiniBand",
                                            .speed_mbit = 400000,
                                            .up = true,
                                            .pci = address_in(8, 1),
                                            .model = "15b3:1021",
                                            .driver = "",
                                            .numa_node = 1,
                                            .nearness = Nearness::pci_switch}));
}

TEST(TopologyGroups, ThirtyTwoCardsAreDealtInTurnFourToEachOfEightGpus) {
  MachineTree machine(2, 16);
  for (unsigned i = 0; i < 4; ++i) {
    const std::string node = i < 2 ? "0" : "1";
    machine.gpu(in_switch(i + 1, 0), node);
    machine.gpu(in_switch(i + 1, 5), node);
    for (const unsigned port : {1U, 2U, 3U, 4U, 6U, 7U, 8U, 9U})
      machine.rdma(fmt::format("rdma{}p{}", i, port), {.path = in_switch(i + 1, port), .node = node});
  }
  const DetectedTopology found = detect(machine);
  Words wanted;
  for (unsigned i = 0; i < 4; ++i) {
    wanted.push_back(fmt::format("{0} rdma{1}p1 rdma{1}p3 rdma{1}p6 rdma{1}p8", address_in(i + 1, 0), i));
    wanted.push_back(fmt::format("{0} rdma{1}p2 rdma{1}p4 rdma{1}p7 rdma{1}p9", address_in(i + 1, 5), i));
  }
  EXPECT_EQ(lines_of(found), wanted);
  EXPECT_THAT(found.left_out, IsEmpty());
}

TEST(TopologyGroups, FourGpusShareOneCardNearOrFar) {
  MachineTree machine(2);
  machine.gpu(in_switch(1, 0));
  machine.gpu(in_switch(1, 1));
  machine.gpu(in_switch(2, 0));
  machine.gpu(in_switch(9, 0), "1");
  machine.rdma("mlx5_0", {.path = in_switch(1, 2)});
  const DetectedTopology found = detect(machine);
  EXPECT_THAT(lines_of(found), ElementsAre(address_in(1, 0) + " mlx5_0", address_in(1, 1) + " mlx5_0",
                                           address_in(2, 0) + " mlx5_0", address_in(9, 0) + " mlx5_0"));
  EXPECT_EQ(found.groups[1].nics[0].nearness, Nearness::pci_switch);
  EXPECT_EQ(found.groups[2].nics[0].nearness, Nearness::numa_node);
  EXPECT_EQ(found.groups[3].nics[0].nearness, Nearness::machine);
}

TEST(TopologyGroups, OfTwoCardsForFourGpusOfASwitchEachHasTwoGpus) {
  MachineTree machine;
  for (unsigned port = 0; port < 4; ++port) machine.gpu(in_switch(1, port));
  machine.rdma("a", {.path = in_switch(1, 4)});
  machine.rdma("b", {.path = in_switch(1, 5)});
  EXPECT_THAT(lines_of(detect(machine)), ElementsAre(address_in(1, 0) + " a", address_in(1, 1) + " b",
                                                     address_in(1, 2) + " a", address_in(1, 3) + " b"));
}

TEST(TopologyGroups, AVirtualMachineWithoutNodesHasAGroupWithAllCpus) {
  MachineTree machine;
  machine.interface("eth0", {.path = "pci0000:00/0000:00:03.0", .node = "-1", .speed = "-1"});
  const DetectedTopology found = detect(machine);
  ASSERT_EQ(found.groups.size(), 1U);
  EXPECT_EQ(found.groups[0].gpu, std::nullopt);
  EXPECT_EQ(found.groups[0].numa_node, 0U);
  EXPECT_EQ(found.groups[0].cpus, (Cpus{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(found.groups[0].own_cpus, found.groups[0].cpus);
  ASSERT_THAT(names_of(found.groups[0]), ElementsAre("eth0"));
  EXPECT_EQ(found.groups[0].nics[0].speed_mbit, 0U);
  EXPECT_EQ(found.groups[0].nics[0].nearness, Nearness::numa_node);
}

TEST(TopologyGroups, CardsOnTheRootBusOfAVirtualMachineAreDealtByAddress) {
  MachineTree machine;
  for (const char* slot : {"04", "05"}) machine.gpu(fmt::format("pci0000:00/0000:00:{}.0", slot), "-1");
  for (const char* slot : {"06", "07"})
    machine.rdma(fmt::format("mlx5_{}", slot),
                 {.path = fmt::format("pci0000:00/0000:00:{}.0", slot), .node = "-1"});
  const DetectedTopology found = detect(machine);
  EXPECT_THAT(lines_of(found), ElementsAre("0000:00:04.0 mlx5_06", "0000:00:05.0 mlx5_07"));
  EXPECT_EQ(found.groups[0].nics[0].nearness, Nearness::host_bridge);
  EXPECT_EQ(found.groups[0].own_cpus, (Cpus{0, 1, 2, 3}));
  EXPECT_EQ(found.groups[1].own_cpus, (Cpus{4, 5, 6, 7}));
}

TEST(TopologyGroups, AMachineWithoutPciHasItsCpusAndNoCard) {
  const MachineTree machine;
  const DetectedTopology found = detect(machine);
  ASSERT_EQ(found.groups.size(), 1U);
  EXPECT_EQ(found.groups[0].cpus.size(), 8U);
  EXPECT_THAT(found.groups[0].nics, IsEmpty());
  EXPECT_THAT(found.left_out, IsEmpty());
}

TEST(TopologyGroups, WithoutSysThereIsAGroupWithTheCpusOfTheThread) {
  const test::RecordedMachine nothing;
  const DetectedTopology found = make_groups(read_cpus(nothing.root(), {{2, 5}, std::nullopt}),
                                             read_gpus(nothing.root()), read_nics(nothing.root()));
  ASSERT_EQ(found.groups.size(), 1U);
  EXPECT_EQ(found.groups[0].cpus, (Cpus{2, 5}));
}

TEST(TopologyGroups, AGpuWhoseCardIsDownTakesThoseOfItsNode) {
  EightGpus machine;
  machine.replace(MachineTree::pci_folder(in_switch(2, 1)) + "/infiniband/mlx5_1/ports/1/state", "1: DOWN");
  const DetectedTopology found = detect(machine);
  EXPECT_THAT(names_of(found.groups[0]), ElementsAre("mlx5_0"));
  EXPECT_THAT(names_of(found.groups[1]), ElementsAre("mlx5_0", "mlx5_2", "mlx5_3"));
  EXPECT_THAT(left_out_of(found), ElementsAre("mlx5_1: its link is down"));
}

TEST(TopologyGroups, ANodeWithoutAGpuIsAGroupOfItsOwn) {
  MachineTree machine(2);
  machine.gpu(in_switch(1, 0));
  machine.rdma("mlx5_0", {.path = in_switch(1, 1)});
  machine.rdma("mlx5_1", {.path = in_switch(9, 1), .node = "1"});
  const DetectedTopology found = detect(machine);
  EXPECT_THAT(lines_of(found), ElementsAre(address_in(1, 0) + " mlx5_0", "node 1 mlx5_1"));
  EXPECT_EQ(found.groups[1].cpus, (Cpus{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(found.groups[1].nics[0].nearness, Nearness::numa_node);
}

TEST(TopologyGroups, AGpuOfNoKnownNodeHasAllCpusAndEachNodeIsAGroup) {
  MachineTree machine(2);
  machine.gpu(in_switch(1, 0), "-1");
  machine.rdma("mlx5_0", {.path = in_switch(9, 1), .node = "1"});
  const DetectedTopology found = detect(machine);
  EXPECT_THAT(lines_of(found), ElementsAre(address_in(1, 0) + " mlx5_0", "node 0 mlx5_0", "node 1 mlx5_0"));
  EXPECT_EQ(found.groups[0].numa_node, std::nullopt);
  EXPECT_EQ(found.groups[0].cpus.size(), 16U);
  EXPECT_EQ(found.groups[0].nics[0].nearness, Nearness::unknown);
}

TEST(TopologyGroups, TheNodeOfABridgeIsThatOfItsDevices) {
  MachineTree machine(2);
  machine.gpu(in_switch(1, 0), "-1");
  machine.replace("/sys/devices/pci0000:10/0000:10:01.0/numa_node", "1");
  EXPECT_EQ(detect(machine).groups[0].numa_node, 1U);
}

TEST(TopologyGroups, CardsBehindANearerBridgeAreDealtFirstAndThoseAboveFollow) {
  MachineTree machine;
  const std::string upper = "pci0000:10/0000:10:01.0/0000:11:00.0";
  machine.gpu(upper + "/0000:12:00.0/0000:13:00.0/0000:14:00.0");
  machine.rdma("near", {.path = upper + "/0000:12:00.0/0000:13:00.0/0000:15:00.0"});
  machine.rdma("above", {.path = upper + "/0000:12:01.0/0000:16:00.0"});
  machine.rdma("beside", {.path = on_root_port(1, 5)});
  const DetectedTopology found = detect(machine);
  EXPECT_THAT(lines_of(found), ElementsAre("0000:14:00.0 near above"));
  EXPECT_THAT(left_out_of(found), ElementsAre("beside: every GPU near it has a nearer one"));
}

TEST(TopologyGroups, PlainInterfacesAreDealtBesideRdmaDevices) {
  EightGpus machine;
  machine.interface("eno1", {.path = on_root_port(2, 1), .device = "0x1563", .speed = "10000"});
  const DetectedTopology found = detect(machine);
  for (unsigned i = 0; i < 8; ++i)
    EXPECT_EQ(names_of(found.groups[i]), (Words{fmt::format("mlx5_{}", i), "eno1"})) << i;
  EXPECT_EQ(found.groups[1].nics[1].nearness, Nearness::host_bridge);
  EXPECT_EQ(found.groups[7].nics[1].nearness, Nearness::machine);
}

TEST(TopologyGroups, OfTwoModelsThatAreEquallyManyTheFasterOneStays) {
  MachineTree machine;
  machine.interface("slow", {.path = on_root_port(1, 1), .device = "0x9999", .speed = "1000"});
  machine.interface("fast", {.path = on_root_port(1, 2), .device = "0x1111", .speed = "25000"});
  const DetectedTopology found = detect(machine);
  EXPECT_THAT(lines_of(found), ElementsAre("node 0 fast"));
  EXPECT_THAT(left_out_of(found),
              ElementsAre("slow: it is of model 15b3:9999, and a faster one is of model 15b3:1111"));
}

TEST(TopologyGroups, AProcessThatSeesOneGpuHasTheCardAndTheCpusOfThatGpu) {
  const EightGpus machine;
  const DetectedTopology found = detect(machine, {{"0000:63:00.0", 0, "NVIDIA H200"}});
  EXPECT_THAT(lines_of(found), ElementsAre("0000:63:00.0 mlx5_5", "node 0 mlx5_0 mlx5_1 mlx5_2 mlx5_3"));
  EXPECT_EQ(found.groups[0].gpu->index, 0);
  EXPECT_EQ(found.groups[0].own_cpus, (Cpus{20, 21, 22, 23}));
  EXPECT_EQ(left_out_of(found).front(),
            "mlx5_4: it is that of GPU 0000:53:00.0, which this process does not see");
  EXPECT_EQ(found.left_out.size(), 3U);
}

TEST(TopologyGroups, GpusAreInTheOrderOfTheDriverAndInLowerCase) {
  const EightGpus machine;
  const DetectedTopology found = detect(
      machine, {{"0000:83:00.0", 0, "H200"}, {"0000:13:00.0", 1, "H200"}, {"0000:AB:00.0", 2, "H200"}});
  EXPECT_THAT(lines_of(found), ElementsAre("0000:83:00.0 mlx5_7", "0000:13:00.0 mlx5_0",
                                           HasSubstr("0000:ab:00.0 mlx5_0 mlx5_1")));
  EXPECT_EQ(found.groups[2].numa_node, std::nullopt);
}

TEST(TopologyGroups, AContainerShowsTheGpusThatHaveADeviceFile) {
  EightGpus machine;
  for (unsigned i = 0; i < 8; ++i)
    machine.append("/proc/driver/nvidia/gpus/" + address_in(i + 1, 0) + "/information",
                   fmt::format("Model: \t\t NVIDIA H200\nDevice Minor: \t {}\nGPU Excluded:\t No", i));
  machine.append("/dev/nvidia2", "");
  EXPECT_THAT(lines_of(detect(machine)), ElementsAre("0000:33:00.0 mlx5_2", HasSubstr("node 1 mlx5_4")));
}

TEST(TopologyGroups, ACardWithoutADeviceFileIsNotDealt) {
  EightGpus machine;
  machine.remove("/dev/infiniband/uverbs0");
  const DetectedTopology found = detect(machine);
  EXPECT_THAT(names_of(found.groups[0]), ElementsAre("mlx5_1", "mlx5_2", "mlx5_3"));
  EXPECT_THAT(left_out_of(found),
              ElementsAre("mlx5_0: this process has no /dev/infiniband/uverbs0: give it to the container"));
}

TEST(TopologyGroups, OnlyUsableCpusCountAndANodeWithoutOneIsNoGroup) {
  MachineTree machine(2);
  machine.gpu(in_switch(1, 0));
  machine.rdma("mlx5_0", {.path = in_switch(1, 1)});
  machine.rdma("mlx5_1", {.path = in_switch(9, 1), .node = "1"});
  const DetectedTopology found = make_groups(read_cpus(machine.root(), {{2, 3}, std::nullopt}),
                                             read_gpus(machine.root()), read_nics(machine.root()));
  EXPECT_THAT(lines_of(found), ElementsAre(address_in(1, 0) + " mlx5_0"));
  EXPECT_EQ(found.groups[0].cpus, (Cpus{2, 3}));
  EXPECT_THAT(left_out_of(found), ElementsAre("mlx5_1: this process may use no CPU of its NUMA node 1"));
}

TEST(TopologyGroups, TheThreadsOfACoreGoToOneGpu) {
  MachineTree machine;
  for (unsigned cpu = 0; cpu < 8; ++cpu)
    machine.append(fmt::format("/sys/devices/system/cpu/cpu{}/topology/core_cpus_list", cpu),
                   fmt::format("{},{}", cpu % 4, cpu % 4 + 4));
  machine.gpu(in_switch(1, 0));
  machine.gpu(in_switch(1, 1));
  const DetectedTopology found = detect(machine);
  EXPECT_EQ(found.groups[0].own_cpus, (Cpus{0, 1, 4, 5}));
  EXPECT_EQ(found.groups[1].own_cpus, (Cpus{2, 3, 6, 7}));
}

TEST(TopologyGroups, MoreGpusThanCoresShareAllCpus) {
  MachineTree machine(1, 1);
  machine.gpu(in_switch(1, 0));
  machine.gpu(in_switch(1, 1));
  const DetectedTopology found = detect(machine);
  EXPECT_EQ(found.groups[0].own_cpus, Cpus{0});
  EXPECT_EQ(found.groups[1].own_cpus, Cpus{0});
}

/// One of each thing, with the files of a machine that are read.
struct SmallMachine : MachineTree {
  SmallMachine() {
    gpu(in_switch(1, 0));
    rdma("mlx5_0", {.path = in_switch(1, 1), .interface = "ens1"});
    interface("eth0", {.path = in_switch(1, 2)});
    bond("bond0", {"eth0"}, "25000");
    append("/proc/driver/nvidia/gpus/" + address_in(1, 0) + "/information", "Device Minor: 0");
    append("/dev/nvidia0", "");
  }

  /// Paths and texts of the files of a name.
  std::vector<std::pair<std::string, std::string>> files(const std::string& name) {
    std::vector<std::pair<std::string, std::string>> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root()))
      if (entry.is_regular_file() && entry.path().filename() == name)
        found.emplace_back(entry.path().string().substr(root().size()),
                           read_small_file(entry.path().string()).value());
    return found;
  }
};

TEST(TopologyGroups, GarbageInAnyFileIsUnknown) {
  const std::string huge(200, '9');
  SmallMachine machine;
  for (const char* name :
       {"online", "cpulist", "vendor", "device", "class", "numa_node", "rate", "state", "link_layer", "ibdev",
        "operstate", "speed", "type", "ifindex", "iflink", "slaves", "information"}) {
    const auto files = machine.files(name);
    ASSERT_FALSE(files.empty()) << name;
    for (const std::string& garbage :
         {std::string(), "-" + huge, std::string("0x"), std::string("1e308 Gb/sec"),
          std::string("nan Gb/sec"), std::string("\0\xff\n\n", 4), std::string("4294967296")}) {
      for (const auto& [path, text] : files) machine.replace(path, garbage);
      DetectedTopology found;
      ASSERT_NO_THROW(found = detect(machine)) << name << ": " << garbage;
      for (const TopologyGroup& group : found.groups)
        for (const TopologyNic& nic : group.nics)
          EXPECT_LE(nic.speed_mbit, 400000U) << name << ": " << garbage;
      EXPECT_NO_THROW((void)to_text(found)) << name << ": " << garbage;
    }
    for (const auto& [path, text] : files) machine.replace(path, text);
  }
  EXPECT_THAT(lines_of(detect(machine)), ElementsAre("0000:13:00.0 mlx5_0 bond0"));
}

TEST(TopologyGroups, AFolderWhereAFileShouldBeIsUnknown) {
  MachineTree machine;
  machine.interface("eth0", {.path = on_root_port(1, 1), .node = "0"});
  const std::string speed = MachineTree::pci_folder(on_root_port(1, 1)) + "/net/eth0/speed";
  machine.remove(speed);
  machine.append(speed + "/file", "1");
  EXPECT_EQ(detect(machine).groups[0].nics[0].speed_mbit, 0U);
}

TEST(TopologyGroups, TheTextHasALineForEachGroupAndEachCardThatIsLeftOut) {
  MachineTree machine;
  machine.gpu(in_switch(1, 0));
  machine.rdma("mlx5_0", {.path = in_switch(1, 1), .interface = "ens1"});
  machine.rdma("mlx5_1", {.path = in_switch(1, 2), .rate = "2.5 Gb/sec (1X SDR)", .state = "1: DOWN"});
  machine.interface("eno1", {.path = in_switch(1, 3), .device = "0x1563", .speed = "100"});
  EXPECT_EQ(to_text(detect(machine, {{address_in(1, 0), 3, "NVIDIA H200"}})),
            "GPU 3 0000:13:00.0, node 0, CPUs 0-7: mlx5_0 400 Gbit/s (RDMA, ens1, pci_switch); "
            "eno1 100 Mbit/s (pci_switch)\n"
            "left out: mlx5_1 unknown speed (RDMA): its link is down\n");
}

}  // namespace
}  // namespace headrace
