// SPDX-License-Identifier: Apache-2.0
#include "fabric/groups.hpp"

#include "rail/tcp/address.hpp"

#include <sched.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace headrace::fabric {
namespace {

/// Where a machine has no network card, or none with an address: processes of other users, too, are reached.
constexpr const char* loopback = "127.0.0.1";

const TopologyGroup* group_of_device(const DetectedTopology& topology, int device) {
  const auto at = std::ranges::find_if(topology.groups, [device](const TopologyGroup& group) {
    return group.gpu && group.gpu->index == device;
  });
  return at == topology.groups.end() ? nullptr : &*at;
}

/// The group of the NUMA node, one without a GPU before one with; else any.
const TopologyGroup* group_of_node(const DetectedTopology& topology, std::optional<unsigned> node) {
  const TopologyGroup* best = nullptr;
  int best_rank = 3;
  for (const TopologyGroup& group : topology.groups) {
    const int rank = (group.numa_node == node ? 0 : 2) + (group.gpu ? 1 : 0);
    if (rank >= best_rank && best != nullptr) continue;
    best = &group;
    best_rank = rank;
  }
  return best;
}

bool is_named(const TopologyNic& nic, const std::string& name) {
  return nic.name == name || std::ranges::find(nic.interfaces, name) != nic.interfaces.end();
}

Error no_such_gpu(int device) {
  return make_error(Code::invalid_argument,
                    "GPU {} is not among those that this process sees: `headrace doctor` lists them", device);
}

// ------------------------------------------------------------------ near ones

GroupPlan near_group(const TopologyGroup* near, std::optional<int> device, unsigned most,
                     const Machine& machine) {
  GroupPlan plan{device, {}, {}, false};
  if (near != nullptr) plan.cpus = near->own_cpus;
  for (const TopologyNic& nic : near == nullptr ? std::vector<TopologyNic>() : near->nics) {
    if (most != 0 && plan.nics.size() == most) break;
    const auto with_address = std::ranges::find_if(
        nic.interfaces, [&](const std::string& each) { return machine.address_of(each).has_value(); });
    // An RDMA device and the plain interface of the same card are one way for sockets.
    const bool usable = with_address != nic.interfaces.end() &&
                        std::ranges::none_of(plan.nics, [&](const GroupPlan::Nic& each) {
                          return each.where == *with_address;
                        });
    if (usable) plan.nics.push_back({nic.name, *with_address});
  }
  if (plan.nics.empty()) plan.nics.push_back({"lo", loopback});
  plan.nics.push_back({this_host, {}});
  return plan;
}

Result<std::vector<GroupPlan>> near_groups(const FabricOptions& options, const Machine& machine) {
  std::vector<GroupPlan> plans;
  if (options.devices.empty()) {
    plans.push_back(
        near_group(group_of_node(machine.topology, machine.numa_node), {}, options.nics_per_group, machine));
    return plans;
  }
  std::set<int> seen;
  for (const int device : options.devices) {
    if (!seen.insert(device).second)
      return make_error(Code::invalid_argument, "GPU {} is given twice: a fabric has one group for it",
                        device);
    const TopologyGroup* const near = group_of_device(machine.topology, device);
    if (near == nullptr) return no_such_gpu(device);
    plans.push_back(near_group(near, device, options.nics_per_group, machine));
  }
  return plans;
}

// ------------------------------------------------------------------ by hand

/// The groups that have the NIC; none: the topology does not know it.
std::vector<const TopologyGroup*> groups_with(const DetectedTopology& topology, const std::string& name) {
  std::vector<const TopologyGroup*> found;
  for (const TopologyGroup& group : topology.groups)
    if (std::ranges::any_of(group.nics, [&](const TopologyNic& nic) { return is_named(nic, name); }))
      found.push_back(&group);
  return found;
}

Result<void> check_near(const std::string& name, int device, const Machine& machine) {
  const auto with = groups_with(machine.topology, name);
  const TopologyGroup* const own = group_of_device(machine.topology, device);
  if (own == nullptr) return no_such_gpu(device);
  if (with.empty() || std::ranges::find(with, own) != with.end()) return {};
  return make_error(Code::invalid_argument,
                    "network card {} is of another group than GPU {} ({}): take one of those that `headrace "
                    "doctor` lists for the GPU, or a group without a device",
                    name, device, to_text(*with.front()));
}

/// What the provider of sockets opens.
Result<std::string> where_of(const std::string& name, const Machine& machine) {
  if (name == this_host) return std::string();
  for (const TopologyGroup& group : machine.topology.groups)
    for (const TopologyNic& nic : group.nics)
      for (const std::string& interface : nic.interfaces)
        if (nic.name == name && machine.address_of(interface)) return interface;
  if (machine.address_of(name)) return name;
  return make_error(Code::not_found,
                    "\"{}\" is no network card with an address, no interface and no local IP address: "
                    "`headrace doctor` and `ip address` list them",
                    name);
}

Result<GroupPlan> hand_group(const FabricGroupOptions& given, const Machine& machine,
                             std::map<std::string, std::string>& taken) {
  if (given.nics.empty())
    return make_error(Code::invalid_argument, "a group has no network card: name at least one");
  GroupPlan plan{given.device, given.cpus, {}, true};
  for (const std::string& name : given.nics) {
    HEADRACE_TRY(where, where_of(name, machine));
    if (given.device) HEADRACE_TRY_VOID(check_near(name, *given.device, machine));
    const auto [at, added] =
        taken.emplace(where.empty() ? name : machine.address_of(where).value_or(where), name);
    if (!added)
      return make_error(Code::invalid_argument, "network card {} is given twice{}: name each once", name,
                        at->second == name ? "" : " (once as " + at->second + ")");
    plan.nics.push_back({name, where});
  }
  if (plan.cpus.empty() && given.device) {
    const TopologyGroup* const own = group_of_device(machine.topology, *given.device);
    if (own == nullptr) return no_such_gpu(*given.device);
    plan.cpus = own->own_cpus;
  }
  return plan;
}

}  // namespace

Machine this_machine(bool ask_driver) {
  Machine machine;
  machine.topology = detect_topology({.root = {}, .ask_driver = ask_driver});
  unsigned cpu = 0, node = 0;
  if (::getcpu(&cpu, &node) == 0) machine.numa_node = node;
  machine.address_of = [](const std::string& where) -> std::optional<std::string> {
    const auto found = rail::tcp::find_local_address(where);
    if (!found) return std::nullopt;
    return found->at.text();
  };
  return machine;
}

Result<std::vector<GroupPlan>> plan_groups(const FabricOptions& options, const Machine& machine) {
  if (options.groups.empty()) return near_groups(options, machine);
  if (!options.devices.empty())
    return make_error(Code::invalid_argument, "groups by hand and devices exclude each other: give one");
  std::vector<GroupPlan> plans;
  std::map<std::string, std::string> taken;
  for (const FabricGroupOptions& given : options.groups) {
    HEADRACE_TRY(plan, hand_group(given, machine, taken));
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace headrace::fabric
