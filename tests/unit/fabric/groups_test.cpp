// SPDX-License-Identifier: Apache-2.0
// Which NICs and CPUs groups get, on written machines.
#include "fabric/groups.hpp"

#include <gtest/gtest.h>

#include <set>

namespace headrace::fabric {
namespace {

TopologyNic rdma_nic(std::string name, std::vector<std::string> interfaces) {
  TopologyNic nic;
  nic.name = std::move(name);
  nic.interfaces = std::move(interfaces);
  nic.rdma = true;
  return nic;
}

TopologyNic plain_nic(const std::string& name) {
  TopologyNic nic;
  nic.name = name;
  nic.interfaces = {name};
  return nic;
}

/// Two GPUs with two network cards each, and a NUMA node without a GPU. Interface "bare" has no address.
Machine two_gpus() {
  Machine machine;
  for (int gpu = 0; gpu < 2; ++gpu) {
    TopologyGroup group;
    group.gpu = TopologyGpu{"0000:0" + std::to_string(gpu) + ":00.0", gpu, "a GPU"};
    group.numa_node = 0;
    group.own_cpus = {static_cast<unsigned>(gpu)};
    for (int nic = 2 * gpu; nic < 2 * gpu + 2; ++nic) {
      const std::string number = std::to_string(nic);
      group.nics.push_back(rdma_nic("mlx5_" + number, {"ens" + number}));
      group.nics.push_back(plain_nic("ens" + number));
    }
    machine.topology.groups.push_back(std::move(group));
  }
  TopologyGroup node;
  node.numa_node = 1;
  node.own_cpus = {2, 3};
  node.nics = {rdma_nic("mlx5_9", {}), plain_nic("bare"), plain_nic("eth0")};
  machine.topology.groups.push_back(std::move(node));
  machine.numa_node = 1;
  machine.address_of = [](const std::string& where) -> std::optional<std::string> {
    static const std::set<std::string> with{"ens0", "ens1", "ens2", "ens3", "eth0", "127.0.0.1"};
    if (!with.contains(where)) return std::nullopt;
    return "address of " + where;
  };
  return machine;
}

std::vector<std::string> names_of(const GroupPlan& plan) {
  std::vector<std::string> names;
  for (const auto& nic : plan.nics) names.push_back(nic.name + " by " + nic.where);
  return names;
}

std::string refusal(const FabricOptions& options, const Machine& machine = two_gpus()) {
  const auto plans = plan_groups(options, machine);
  return plans ? "no refusal" : plans.error().message;
}

using Names = std::vector<std::string>;

TEST(FabricGroups, a_device_gets_the_network_cards_and_CPUs_near_it) {
  const auto plans = plan_groups({.devices = {1, 0}}, two_gpus());
  ASSERT_TRUE(plans);
  ASSERT_EQ(plans->size(), 2U);
  EXPECT_EQ(names_of(plans->at(0)), (Names{"mlx5_2 by ens2", "mlx5_3 by ens3", "this host by "}))
      << "each card once";
  EXPECT_EQ(plans->at(0).device, 1);
  EXPECT_EQ(plans->at(0).cpus, std::vector<unsigned>{1});
  EXPECT_EQ(names_of(plans->at(1)), (Names{"mlx5_0 by ens0", "mlx5_1 by ens1", "this host by "}));
}

TEST(FabricGroups, the_number_of_network_cards_is_limited) {
  const auto plans = plan_groups({.devices = {0}, .nics_per_group = 1}, two_gpus());
  ASSERT_TRUE(plans);
  EXPECT_EQ(names_of(plans->at(0)), (Names{"mlx5_0 by ens0", "this host by "}));
}

TEST(FabricGroups, host_memory_has_the_group_of_the_calling_threads_node) {
  const auto plans = plan_groups({}, two_gpus());
  ASSERT_TRUE(plans);
  ASSERT_EQ(plans->size(), 1U);
  EXPECT_EQ(names_of(plans->at(0)), (Names{"eth0 by eth0", "this host by "}))
      << "those without an address are no way for sockets";
  EXPECT_EQ(plans->at(0).cpus, (std::vector<unsigned>{2, 3}));
  EXPECT_FALSE(plans->at(0).device);
}

TEST(FabricGroups, a_machine_without_network_cards_reaches_its_own_host) {
  Machine machine = two_gpus();
  machine.topology.groups.clear();
  const auto plans = plan_groups({}, machine);
  ASSERT_TRUE(plans);
  EXPECT_EQ(names_of(plans->at(0)), (Names{"lo by 127.0.0.1", "this host by "}));
}

TEST(FabricGroups, groups_by_hand_are_as_they_say) {
  FabricOptions options;
  options.groups = {{.nics = {"mlx5_2", "ens3"}, .device = 1}, {.nics = {"eth0", "this host"}, .cpus = {3}}};
  const auto plans = plan_groups(options, two_gpus());
  ASSERT_TRUE(plans) << plans.error().message;
  EXPECT_EQ(names_of(plans->at(0)), (Names{"mlx5_2 by ens2", "ens3 by ens3"}));
  EXPECT_EQ(plans->at(0).cpus, std::vector<unsigned>{1}) << "near the device";
  EXPECT_EQ(names_of(plans->at(1)), (Names{"eth0 by eth0", "this host by "}));
  EXPECT_EQ(plans->at(1).cpus, std::vector<unsigned>{3});
}

TEST(FabricGroups, groups_that_cannot_be_are_refused_with_a_sentence) {
  const auto by_hand = [](std::vector<FabricGroupOptions> groups) {
    FabricOptions options;
    options.groups = std::move(groups);
    return options;
  };
  EXPECT_NE(
      refusal(by_hand({{.nics = {"mlx5_0"}, .device = 1}})).find("mlx5_0 is of another group than GPU 1"),
      std::string::npos);
  EXPECT_NE(refusal(by_hand({{.nics = {"mlx5_0", "ens0"}}})).find("ens0 is given twice (once as mlx5_0)"),
            std::string::npos);
  EXPECT_NE(refusal(by_hand({{.nics = {}}})).find("no network card"), std::string::npos);
  EXPECT_NE(refusal(by_hand({{.nics = {"bare"}}})).find("\"bare\" is no network card with an address"),
            std::string::npos);
  EXPECT_NE(refusal({.devices = {2}}).find("GPU 2 is not among those"), std::string::npos);
  EXPECT_NE(refusal({.devices = {0, 0}}).find("GPU 0 is given twice"), std::string::npos);
}

}  // namespace
}  // namespace headrace::fabric
