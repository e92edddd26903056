// SPDX-License-Identifier: Apache-2.0
// Groups of a machine as lines for people.
#include "base/errors.hpp"
#include "topology/cpu_list.hpp"

#include <headrace/topology.hpp>

#include <fmt/ranges.h>

namespace headrace {
namespace {

std::string speed_text(std::uint64_t mbit) {
  if (mbit == 0) return "unknown speed";
  if (mbit < 1000) return fmt::format("{} Mbit/s", mbit);
  return fmt::format("{:.15g} Gbit/s", static_cast<double>(mbit) / 1000);
}

/// What stands in brackets behind a card: "RDMA, ens1f0np0".
std::vector<std::string> notes_of(const TopologyNic& nic) {
  std::vector<std::string> notes;
  if (nic.rdma) notes.emplace_back("RDMA");
  for (const std::string& interface : nic.interfaces)
    if (interface != nic.name) notes.push_back(interface);
  return notes;
}

std::string nic_text(const TopologyNic& nic, const std::vector<std::string>& notes) {
  const std::string text = fmt::format("{} {}", nic.name, speed_text(nic.speed_mbit));
  return notes.empty() ? text : fmt::format("{} ({})", text, fmt::join(notes, ", "));
}

}  // namespace

std::string_view nearness_name(Nearness nearness) noexcept {
  switch (nearness) {
    case Nearness::pci_switch:
      return "pci_switch";
    case Nearness::host_bridge:
      return "host_bridge";
    case Nearness::numa_node:
      return "numa_node";
    case Nearness::machine:
      return "machine";
    case Nearness::unknown:
      return "unknown";
  }
  return "?";
}

std::string to_text(const TopologyNic& nic) { return nic_text(nic, notes_of(nic)); }

std::string to_text(const TopologyGroup& group) {
  std::string text;
  if (group.gpu) {
    text = group.gpu->index ? fmt::format("GPU {} {}, ", *group.gpu->index, group.gpu->pci)
                            : fmt::format("GPU {}, ", group.gpu->pci);
  }
  text += group.numa_node ? fmt::format("node {}", *group.numa_node) : "node unknown";
  text += fmt::format(", CPUs {}: ", cpu_list_text(group.cpus));
  if (group.nics.empty()) return text + "no network card";
  for (std::size_t i = 0; i < group.nics.size(); ++i) {
    std::vector<std::string> notes = notes_of(group.nics[i]);
    notes.emplace_back(nearness_name(group.nics[i].nearness));
    text += (i == 0 ? "" : "; ") + nic_text(group.nics[i], notes);
  }
  return text;
}

std::string to_text(const DetectedTopology& topology) {
  std::string text;
  for (const TopologyGroup& group : topology.groups) text += to_text(group) + "\n";
  for (const LeftOutNic& left : topology.left_out)
    text += fmt::format("left out: {}: {}\n", to_text(left.nic), left.reason);
  return text;
}

}  // namespace headrace
