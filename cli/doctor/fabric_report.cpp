// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/fabric_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <memory>

namespace headrace::cli {
namespace {

/// Empty if it is no address by which another machine could reach us.
std::string address_text(const sockaddr* address) {
  if (address == nullptr) return {};
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    const auto& four = *reinterpret_cast<const sockaddr_in*>(address);
    return ::inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size()) != nullptr ? text.data() : "";
  }
  if (address->sa_family != AF_INET6) return {};
  const auto& six = *reinterpret_cast<const sockaddr_in6*>(address);
  if (IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr)) return {};
  return ::inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size()) != nullptr ? text.data() : "";
}

/// Each card once, those of groups first.
std::vector<const TopologyNic*> all_nics(const DetectedTopology& topology) {
  std::vector<const TopologyNic*> nics;
  const auto add = [&nics](const TopologyNic& nic) {
    if (std::ranges::none_of(nics, [&](const TopologyNic* known) { return known->name == nic.name; }))
      nics.push_back(&nic);
  };
  for (const TopologyGroup& group : topology.groups)
    for (const TopologyNic& nic : group.nics) add(nic);
  for (const LeftOutNic& left : topology.left_out) add(left.nic);
  return nics;
}

/// The card under an interface; null: it is software, such as a bridge.
const TopologyNic* nic_under(const DetectedTopology& topology, const std::string& interface) {
  for (const TopologyNic* nic : all_nics(topology))
    if (std::ranges::count(nic->interfaces, interface) > 0) return nic;
  return nullptr;
}

struct ShownInterface {
  std::string name;
  std::vector<std::string> addresses;
  const TopologyNic* nic = nullptr;
};

std::vector<ShownInterface> by_interface(const DetectedTopology& topology,
                                         const std::vector<InterfaceAddress>& addresses) {
  std::vector<ShownInterface> shown;
  for (const auto& [interface, address] : addresses) {
    auto at = std::ranges::find(shown, interface, &ShownInterface::name);
    if (at == shown.end()) at = shown.insert(at, {interface, {}, nic_under(topology, interface)});
    at->addresses.push_back(address);
  }
  return shown;
}

std::string interface_text(const ShownInterface& interface) {
  const std::string addresses = fmt::format("{}", fmt::join(interface.addresses, ", "));
  if (interface.nic == nullptr) return fmt::format("{}: {}, no card", interface.name, addresses);
  return fmt::format("{}: {}, on {}", interface.name, addresses, to_text(*interface.nic));
}

Finding show_groups(const DetectedTopology& topology) {
  std::string text = to_text(topology);
  while (text.ends_with('\n')) text.pop_back();
  return {"topology", Finding::State::note, std::move(text), {}};
}

Finding show_interfaces(const std::vector<ShownInterface>& interfaces) {
  std::string text;
  for (const ShownInterface& interface : interfaces)
    text += (text.empty() ? "" : "\n") + interface_text(interface);
  return {"interfaces",
          Finding::State::note,
          text.empty() ? "none has an address by which other machines could reach it" : text,
          {}};
}

std::vector<std::string> rdma_texts(const DetectedTopology& topology) {
  std::vector<std::string> texts;
  for (const TopologyNic* nic : all_nics(topology))
    if (nic->rdma) texts.push_back(to_text(*nic));
  return texts;
}

Finding show_rdma(const DetectedTopology& topology) {
  const std::vector<std::string> devices = rdma_texts(topology);
  return {"RDMA devices",
          Finding::State::note,
          devices.empty() ? "none in /sys/class/infiniband"
                          : fmt::format("{}; no provider uses them yet", fmt::join(devices, ", ")),
          {}};
}

Json nic_json(const TopologyNic& nic) {
  Json json{{"name", nic.name},
            {"interfaces", nic.interfaces},
            {"rdma", nic.rdma},
            {"link_layer", nic.link_layer},
            {"speed_mbit", nic.speed_mbit},
            {"up", nullptr},
            {"pci", nic.pci},
            {"model", nic.model},
            {"driver", nic.driver},
            {"numa_node", nullptr},
            {"nearness", nearness_name(nic.nearness)}};
  if (nic.up) json["up"] = *nic.up;
  if (nic.numa_node) json["numa_node"] = *nic.numa_node;
  return json;
}

Json group_json(const TopologyGroup& group) {
  Json json{{"gpu", nullptr}, {"numa_node", nullptr}};
  if (group.gpu) {
    json["gpu"] = {{"pci", group.gpu->pci}, {"index", nullptr}, {"name", group.gpu->name}};
    if (group.gpu->index) json["gpu"]["index"] = *group.gpu->index;
  }
  if (group.numa_node) json["numa_node"] = *group.numa_node;
  json["cpus"] = group.cpus;
  json["own_cpus"] = group.own_cpus;
  json["nics"] = Json::array();
  for (const TopologyNic& nic : group.nics) json["nics"].push_back(nic_json(nic));
  return json;
}

}  // namespace

std::vector<InterfaceAddress> read_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, &::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (std::string text = address_text(entry->ifa_addr); !text.empty())
      found.push_back({entry->ifa_name, std::move(text)});
  }
  return found;
}

std::vector<Provider> list_providers(const DetectedTopology& topology) {
  std::vector<Provider> providers{{"tcp", true, {}}, {"shm", true, {}}};
  providers.push_back({"cuda_ipc", false,
                       "no provider of its own: shm copies memory of GPUs between processes of this host"});
  providers.push_back(
      {"verbs", false,
       rdma_texts(topology).empty() ? "no RDMA device in /sys/class/infiniband" : "no provider yet"});
  for (const char* name : {"libfabric", "ucx"}) providers.push_back({name, false, "no provider yet"});
  return providers;
}

std::vector<Finding> show_fabric(const DetectedTopology& topology,
                                 const std::vector<InterfaceAddress>& addresses) {
  std::string providers;
  for (const Provider& provider : list_providers(topology))
    providers += fmt::format("{}{}: {}", providers.empty() ? "" : "\n", provider.name,
                             provider.usable ? "usable" : provider.reason);
  return {show_groups(topology),
          show_interfaces(by_interface(topology, addresses)),
          show_rdma(topology),
          {"fabric", Finding::State::note, providers, {}}};
}

Json fabric_json(const DetectedTopology& topology, const std::vector<InterfaceAddress>& addresses) {
  Json json{{"groups", Json::array()},
            {"left_out", Json::array()},
            {"interfaces", Json::array()},
            {"providers", Json::array()}};
  for (const TopologyGroup& group : topology.groups) json["groups"].push_back(group_json(group));
  for (const LeftOutNic& left : topology.left_out)
    json["left_out"].push_back({{"nic", nic_json(left.nic)}, {"reason", left.reason}});
  for (const ShownInterface& interface : by_interface(topology, addresses))
    json["interfaces"].push_back({{"name", interface.name},
                                  {"addresses", interface.addresses},
                                  {"nic", interface.nic == nullptr ? Json() : Json(interface.nic->name)},
                                  {"speed_mbit", interface.nic == nullptr ? 0 : interface.nic->speed_mbit}});
  for (const Provider& provider : list_providers(topology))
    json["providers"].push_back(
        {{"name", provider.name}, {"usable", provider.usable}, {"reason", provider.reason}});
  return json;
}

}  // namespace headrace::cli
