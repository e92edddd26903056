// SPDX-License-Identifier: Apache-2.0
#include "topology/nics.hpp"

#include "topology/cpu_list.hpp"
#include "unit/topology/machine_tree.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

using test::MachineTree;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr const char* first_port = "pci0000:10/0000:10:01.0/0000:11:00.0";
constexpr const char* second_port = "pci0000:10/0000:10:01.0/0000:11:00.1";

std::vector<std::string> usable_names(const NicList& nics) {
  std::vector<std::string> names;
  for (const Nic& nic : nics.usable) names.push_back(nic.what.name);
  return names;
}

std::vector<std::string> left_out_lines(const NicList& nics) {
  std::vector<std::string> lines;
  for (const LeftOutNic& left : nics.left_out) lines.push_back(left.nic.name + ": " + left.reason);
  return lines;
}

TEST(Nics, AnRdmaDeviceAndItsInterfaceAreOneCard) {
  MachineTree machine;
  machine.rdma("mlx5_0", {.path = first_port, .interface = "ens1f0"});
  machine.append("/sys/bus/pci/drivers/mlx5_core/uevent", "");
  machine.link(MachineTree::pci_folder(first_port) + "/driver", "/sys/bus/pci/drivers/mlx5_core");
  const NicList nics = read_nics(machine.root());
  ASSERT_THAT(usable_names(nics), ElementsAre("mlx5_0"));
  const TopologyNic& nic = nics.usable[0].what;
  EXPECT_THAT(nic.interfaces, ElementsAre("ens1f0"));
  EXPECT_EQ(nic.link_layer, "Ethernet");
  EXPECT_EQ(nic.driver, "mlx5_core");
  EXPECT_EQ(nic.pci, "0000:11:00.0");
  EXPECT_THAT(nics.usable[0].place.bridges, ElementsAre("pci0000:10", "0000:10:01.0"));
}

TEST(Nics, TheInterfaceOfAHiddenRdmaDeviceIsAPlainCard) {
  MachineTree machine;
  machine.rdma("mlx5_0", {.path = first_port, .interface = "ens1f0"});
  machine.remove("/sys/class/infiniband_verbs");
  const NicList nics = read_nics(machine.root());
  ASSERT_THAT(usable_names(nics), ElementsAre("ens1f0"));
  EXPECT_FALSE(nics.usable[0].what.rdma);
  EXPECT_THAT(left_out_lines(nics), ElementsAre("mlx5_0: no file in /dev/infiniband belongs to it: load the "
                                                "kernel's module ib_uverbs"));
}

TEST(Nics, TheSpeedOfADeviceIsThatOfItsPortsThatAreUp) {
  MachineTree machine;
  machine.rdma("mlx4_0", {.path = first_port, .rate = "56 Gb/sec (4X FDR)"});
  const std::string ports = MachineTree::pci_folder(first_port) + "/infiniband/mlx4_0/ports";
  machine.append(ports + "/2/rate", "40 Gb/sec (4X QDR)");
  machine.append(ports + "/2/state", "4: ACTIVE");
  machine.append(ports + "/3/rate", "10 Gb/sec (4X SDR)");
  machine.append(ports + "/3/state", "1: DOWN");
  const NicList nics = read_nics(machine.root());
  EXPECT_EQ(nics.usable.at(0).what.speed_mbit, 96000U);
}

TEST(Nics, ABondIsOneCardAndItsMembersAreNamed) {
  MachineTree machine;
  machine.interface("eth0", {.path = first_port, .speed = "25000"});
  machine.interface("eth1", {.path = second_port, .speed = "25000"});
  machine.bond("bond0", {"eth1", "eth0"}, "50000");
  const NicList nics = read_nics(machine.root());
  ASSERT_THAT(usable_names(nics), ElementsAre("bond0"));
  const Nic& bond = nics.usable[0];
  EXPECT_EQ(bond.what.speed_mbit, 50000U);
  EXPECT_EQ(bond.what.pci, "0000:11:00.0");
  EXPECT_EQ(bond.what.model, "15b3:1021");
  EXPECT_THAT(bond.place.bridges, ElementsAre("pci0000:10", "0000:10:01.0"));
  EXPECT_THAT(left_out_lines(nics),
              ElementsAre("eth0: it is a member of bond0", "eth1: it is a member of bond0"));
}

TEST(Nics, ABondOfMembersOfTwoNodesIsNearNone) {
  MachineTree machine(2);
  machine.interface("eth0", {.path = first_port});
  machine.interface("eth1", {.path = "pci0000:90/0000:90:01.0/0000:91:00.0", .node = "1"});
  machine.bond("bond0", {"eth0", "eth1"}, "50000");
  const NicList nics = read_nics(machine.root());
  EXPECT_EQ(nics.usable.at(0).what.numa_node, std::nullopt);
  EXPECT_THAT(nics.usable.at(0).place.bridges, IsEmpty());
}

TEST(Nics, ABondWithOneRdmaDeviceForAllItsMembersIsTheInterfaceOfThatDevice) {
  MachineTree machine;
  machine.rdma("mlx5_bond_0", {.path = first_port, .interface = "eth0"});
  machine.interface("eth1", {.path = second_port});
  machine.bond("bond0", {"eth0", "eth1"}, "800000");
  const NicList nics = read_nics(machine.root());
  ASSERT_THAT(usable_names(nics), ElementsAre("mlx5_bond_0"));
  EXPECT_THAT(nics.usable[0].what.interfaces, ElementsAre("bond0"));
  EXPECT_THAT(left_out_lines(nics), ElementsAre("eth1: it is a member of bond0"));
}

TEST(Nics, ABondAboveTwoRdmaDevicesIsACardBesideThem) {
  MachineTree machine;
  machine.rdma("mlx5_0", {.path = first_port, .interface = "ib0"});
  machine.rdma("mlx5_1", {.path = second_port, .interface = "ib1"});
  machine.bond("bond0", {"ib0", "ib1"}, "800000");
  const NicList nics = read_nics(machine.root());
  ASSERT_THAT(usable_names(nics), ElementsAre("bond0", "mlx5_0", "mlx5_1"));
  EXPECT_THAT(nics.usable[1].what.interfaces, IsEmpty());
}

TEST(Nics, AFunctionBelowTheSyntheticInterfaceOfAVirtualMachineIsAMemberOfIt) {
  MachineTree machine;
  machine.interface("eth0", {.path = first_port, .speed = "50000"});
  machine.interface("enP1s1", {.path = second_port, .speed = "50000"});
  machine.link("/sys/class/net/enP1s1/master", MachineTree::pci_folder(first_port) + "/net/eth0");
  const NicList nics = read_nics(machine.root());
  EXPECT_THAT(usable_names(nics), ElementsAre("eth0"));
  EXPECT_THAT(left_out_lines(nics), ElementsAre("enP1s1: it is a member of eth0"));
}

TEST(Nics, AMemberOfABridgeIsACard) {
  MachineTree machine;
  machine.interface("eth0", {.path = first_port});
  machine.software_interface("br0");
  machine.link("/sys/class/net/eth0/master", "/sys/devices/virtual/net/br0");
  EXPECT_THAT(usable_names(read_nics(machine.root())), ElementsAre("eth0"));
}

TEST(Nics, InterfacesWithoutHardwareAreNoCards) {
  MachineTree machine;
  machine.interface("eth0", {.path = first_port});
  machine.software_interface("veth12", "3");
  machine.software_interface("docker0");
  machine.software_interface("lo");
  machine.replace("/sys/devices/virtual/net/lo/type", "772");
  const NicList nics = read_nics(machine.root());
  EXPECT_THAT(usable_names(nics), ElementsAre("eth0"));
  EXPECT_THAT(nics.left_out, IsEmpty());
}

TEST(Nics, WithoutHardwareTheEndOfACableIsACard) {
  MachineTree machine;
  machine.software_interface("eth0", "3");
  machine.software_interface("veth1", "4");  // leads to a container inside this one
  machine.software_interface("docker0");
  machine.link("/sys/devices/virtual/net/veth1/master", "/sys/devices/virtual/net/docker0");
  machine.software_interface("eth0.5", "3");
  machine.append("/sys/devices/virtual/net/eth0.5/uevent", "DEVTYPE=vlan");
  machine.software_interface("tunnel", "0");
  machine.append("/sys/devices/virtual/net/tunnel/lower_eth0", "");
  const NicList nics = read_nics(machine.root());
  ASSERT_THAT(usable_names(nics), ElementsAre("eth0"));
  EXPECT_EQ(nics.usable[0].what.speed_mbit, 10000U);
  EXPECT_EQ(nics.usable[0].what.pci, "");
}

TEST(Nics, AnRdmaDeviceThatIsSoftwareIsOnItsInterface) {
  MachineTree machine;
  machine.interface("eth0", {.path = first_port, .speed = "10000"});
  const std::string device = "/sys/devices/virtual/infiniband/rxe0";
  machine.append(device + "/parent", "eth0");
  machine.append(device + "/ports/1/state", "4: ACTIVE");
  machine.link("/sys/class/infiniband/rxe0", device);
  machine.append("/sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0");
  machine.append("/dev/infiniband/uverbs0", "");
  const NicList nics = read_nics(machine.root());
  ASSERT_THAT(usable_names(nics), ElementsAre("rxe0"));
  EXPECT_THAT(nics.usable[0].what.interfaces, ElementsAre("eth0"));
  EXPECT_EQ(nics.usable[0].what.pci, "0000:11:00.0");
  EXPECT_EQ(nics.usable[0].what.speed_mbit, 10000U);
}

TEST(Nics, AVirtualFunctionBesideItsCardIsLeftOutAndAloneItIsACard) {
  MachineTree machine;
  machine.rdma("mlx5_0", {.path = first_port});
  machine.rdma("mlx5_1", {.path = second_port, .device = "0x101e"});
  machine.link(MachineTree::pci_folder(second_port) + "/physfn", MachineTree::pci_folder(first_port));
  NicList nics = read_nics(machine.root());
  EXPECT_THAT(usable_names(nics), ElementsAre("mlx5_0"));
  EXPECT_THAT(left_out_lines(nics), ElementsAre("mlx5_1: it is a virtual function of mlx5_0"));
  machine.remove("/sys/class/infiniband/mlx5_0");
  nics = read_nics(machine.root());
  EXPECT_THAT(usable_names(nics), ElementsAre("mlx5_1"));
}

TEST(Nics, AUsbDeviceIsNamedAndAPortForAVirtualFunctionIsNoCard) {
  MachineTree machine;
  machine.interface("eth0", {.path = first_port});
  machine.interface("eth0_vf3", {.path = first_port});
  machine.append(MachineTree::pci_folder(first_port) + "/net/eth0_vf3/phys_port_name", "pf0vf3");
  const std::string usb = "pci0000:00/0000:00:14.0";
  machine.pci(usb, "0x8086", "0x1bcd", "0x0c0330", "0");
  const std::string stick = MachineTree::pci_folder(usb) + "/usb1/1-4/1-4:1.0";
  machine.append(stick + "/net/usb0/operstate", "up");
  machine.link(stick + "/net/usb0/device", stick);
  machine.link("/sys/class/net/usb0", stick + "/net/usb0");
  const NicList nics = read_nics(machine.root());
  EXPECT_THAT(usable_names(nics), ElementsAre("eth0"));
  EXPECT_THAT(left_out_lines(nics),
              ElementsAre("usb0: it is a USB device, as links to management controllers are"));
}

TEST(Nics, AnInterfaceWithoutAStateIsUpIfItHasACarrier) {
  MachineTree machine;
  machine.interface("eth0", {.path = first_port});
  const std::string folder = MachineTree::pci_folder(first_port) + "/net/eth0";
  machine.replace(folder + "/operstate", "unknown");
  EXPECT_THAT(left_out_lines(read_nics(machine.root())), ElementsAre("eth0: its link is down"));
  machine.append(folder + "/carrier", "1");
  EXPECT_THAT(usable_names(read_nics(machine.root())), ElementsAre("eth0"));
  machine.remove(folder + "/operstate");
  const NicList nics = read_nics(machine.root());
  EXPECT_EQ(nics.usable.at(0).what.up, std::nullopt);
}

TEST(PciDevices, AddressesAreOrderedByNumber) {
  EXPECT_TRUE(pci_address_less("0000:1b:00.0", "0000:9d:00.0"));
  EXPECT_TRUE(pci_address_less("ffff:1b:00.0", "10000:00:00.0"));
  for (const char* wrong : {"", "0000:1b:00", "000:1b:00.0", "0000:1b:00.00", "0000:1g:00.0", "pci0000:16"})
    EXPECT_FALSE(is_pci_address(wrong)) << wrong;
}

TEST(CpuList, NumbersBecomeRanges) {
  EXPECT_EQ(cpu_list_text(std::vector<unsigned>{0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(cpu_list_text({}), "");
}

}  // namespace
}  // namespace headrace
