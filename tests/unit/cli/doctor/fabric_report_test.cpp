// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/fabric_report.hpp"

#include <gtest/gtest.h>

namespace headrace::cli {
namespace {

TopologyNic card(const std::string& name, const std::string& interface, std::uint64_t speed_mbit) {
  TopologyNic nic;
  nic.name = name;
  nic.interfaces = {interface};
  nic.rdma = name != interface;
  nic.speed_mbit = speed_mbit;
  nic.up = nic.rdma;
  return nic;
}

/// A GPU with an RDMA card, and a slow card that is left out.
DetectedTopology one_gpu() {
  TopologyGroup group;
  group.gpu = TopologyGpu{"0000:1b:00.0", 0, "NVIDIA H200"};
  group.numa_node = 1;
  group.cpus = group.own_cpus = {8, 9};
  group.nics = {card("mlx5_0", "ens1", 400000)};
  group.nics[0].nearness = Nearness::pci_switch;
  return {{group, group}, {{card("eno1", "eno1", 1000), "its link is down"}}};
}

std::string value_of(const std::vector<Finding>& findings, const std::string& name) {
  for (const Finding& finding : findings)
    if (finding.name == name) return finding.value;
  ADD_FAILURE() << "no finding " << name;
  return {};
}

TEST(fabric_report, interfaces_are_shown_with_their_addresses_and_cards) {
  const auto findings =
      show_fabric(one_gpu(), {{"ens1", "10.0.0.1"}, {"ens1", "2001:db8::1"}, {"docker0", "172.17.0.1"}});
  EXPECT_EQ(value_of(findings, "interfaces"),
            "ens1: 10.0.0.1, 2001:db8::1, on mlx5_0 400 Gbit/s (RDMA, ens1)\ndocker0: 172.17.0.1, no card");
  EXPECT_EQ(value_of(show_fabric(one_gpu(), {}), "interfaces"),
            "none has an address by which other machines could reach it");
}

TEST(fabric_report, groups_and_cards_that_are_left_out_have_a_line_each) {
  const std::string line =
      "GPU 0 0000:1b:00.0, node 1, CPUs 8-9: mlx5_0 400 Gbit/s (RDMA, ens1, pci_switch)\n";
  EXPECT_EQ(value_of(show_fabric(one_gpu(), {}), "topology"),
            line + line + "left out: eno1 1 Gbit/s: its link is down");
}

TEST(fabric_report, an_rdma_device_of_two_groups_is_named_once_and_sockets_and_shm_alone_are_usable) {
  const auto findings = show_fabric(one_gpu(), {});
  EXPECT_EQ(value_of(findings, "RDMA devices"), "mlx5_0 400 Gbit/s (RDMA, ens1); no provider uses them yet");
  EXPECT_NE(value_of(findings, "fabric").find("verbs: no provider yet\n"), std::string::npos);
  for (const Provider& provider : list_providers(one_gpu())) {
    EXPECT_EQ(provider.usable, provider.name == "tcp" || provider.name == "shm") << provider.name;
    EXPECT_EQ(provider.reason.empty(), provider.usable) << provider.name;
  }
}

TEST(fabric_report, a_machine_without_rdma_devices_says_so) {
  const auto findings = show_fabric({}, {});
  EXPECT_EQ(value_of(findings, "RDMA devices"), "none in /sys/class/infiniband");
  EXPECT_NE(value_of(findings, "fabric").find("verbs: no RDMA device in /sys/class/infiniband"),
            std::string::npos);
}

TEST(fabric_report, json_has_null_for_what_is_unknown) {
  DetectedTopology topology = one_gpu();
  topology.groups.pop_back();
  topology.groups[0].gpu->index.reset();
  topology.groups[0].numa_node.reset();
  const Json json = fabric_json(topology, {{"ens1", "10.0.0.1"}, {"docker0", "172.17.0.1"}});
  const Json& group = json.at("groups").at(0);
  EXPECT_EQ(group.at("gpu"), (Json{{"pci", "0000:1b:00.0"}, {"index", nullptr}, {"name", "NVIDIA H200"}}));
  EXPECT_TRUE(group.at("numa_node").is_null());
  EXPECT_EQ(group.at("cpus"), Json({8, 9}));
  EXPECT_EQ(group.at("nics").at(0).at("nearness"), "pci_switch");
  EXPECT_TRUE(group.at("nics").at(0).at("numa_node").is_null());
  EXPECT_EQ(group.at("nics").at(0).at("up"), true);
  EXPECT_EQ(json.at("left_out").at(0).at("reason"), "its link is down");
  EXPECT_EQ(json.at("interfaces").at(0).at("speed_mbit"), 400000);
  EXPECT_TRUE(json.at("interfaces").at(1).at("nic").is_null());
  EXPECT_EQ(json.at("providers").size(), 6U);
}

TEST(fabric_report, addresses_of_loopback_and_of_one_link_are_no_addresses_for_others) {
  for (const InterfaceAddress& address : read_addresses()) {
    EXPECT_FALSE(address.interface.empty());
    EXPECT_FALSE(address.address.starts_with("127.") || address.address.starts_with("fe80:"))
        << address.address;
  }
}

}  // namespace
}  // namespace headrace::cli
