// SPDX-License-Identifier: Apache-2.0
#include "topology/groups.hpp"

#include "topology/deal.hpp"
#include "topology/sysfs_layout.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

namespace headrace {
namespace {

using Hands = std::vector<std::vector<std::size_t>>;

/// Cards of one kind and the GPUs that have them.
struct Dealt {
  std::vector<Nic> nics;
  Hands hands;                       ///< for each GPU of the machine
  std::set<std::size_t> in_a_group;  ///< indices into `nics`
};

class GroupMaker {
 public:
  GroupMaker(const Topology& cpus, SeenGpus gpus, NicList nics) : cpus_(cpus), gpus_(std::move(gpus)) {
    for (PciDevice& gpu : gpus_.all) gpu.numa_node = known_node(gpu.numa_node);
    made_.left_out = std::move(nics.left_out);
    std::vector<Nic> rdma, plain;
    for (Nic& nic : nics.usable) {
      nic.place.numa_node = nic.what.numa_node = known_node(nic.what.numa_node);
      (nic.what.rdma ? rdma : plain).push_back(std::move(nic));
    }
    kinds_ = {deal(std::move(rdma)), deal(std::move(plain))};
    deal_cpus();
  }

  DetectedTopology make() {
    for (const TopologyGpu& gpu : gpus_.shown) add_gpu(gpu);
    for (const NumaNode& node : cpus_.nodes()) add_node(node.id);
    for (const Dealt& kind : kinds_) name_the_rest(kind);
    std::ranges::stable_sort(made_.left_out, {}, [](const LeftOutNic& left) { return left.nic.name; });
    return std::move(made_);
  }

 private:
  /// A device of a machine with one node is next to it, even if the firmware does not say so.
  [[nodiscard]] std::optional<unsigned> known_node(std::optional<unsigned> node) const {
    if (cpus_.nodes().size() == 1) return cpus_.nodes().front().id;
    if (node && std::ranges::count(cpus_.nodes(), *node, &NumaNode::id) > 0) return node;
    return std::nullopt;
  }

  Dealt deal(std::vector<Nic> nics) {
    Dealt dealt;
    dealt.nics = without_odd_models(std::move(nics), made_.left_out);
    dealt.hands = deal_nics(gpus_.all, dealt.nics);
    return dealt;
  }

  [[nodiscard]] std::vector<unsigned> usable_cpus_near(std::optional<unsigned> node) const {
    std::vector<unsigned> near = node ? cpus_.usable_cpus_of(*node) : std::vector<unsigned>();
    if (near.empty()) near.assign(cpus_.usable_cpus().begin(), cpus_.usable_cpus().end());
    return near;
  }

  /// The CPUs of each core among `cpus`, by the core's lowest CPU.
  [[nodiscard]] std::vector<std::vector<unsigned>> cores_of(const std::vector<unsigned>& cpus) const {
    std::map<unsigned, std::vector<unsigned>> cores;
    for (const Cpu& cpu : cpus_.cpus())
      if (std::ranges::binary_search(cpus, cpu.id)) cores[cpu.core].push_back(cpu.id);
    std::vector<std::vector<unsigned>> list;
    for (auto& [core, threads] : cores) list.push_back(std::move(threads));
    return list;
  }

  /// GPUs with the same CPUs near them get blocks of whole cores.
  void deal_cpus() {
    std::map<std::vector<unsigned>, std::vector<std::size_t>> sharers;
    for (std::size_t i = 0; i < gpus_.all.size(); ++i)
      sharers[usable_cpus_near(gpus_.all[i].numa_node)].push_back(i);
    own_cpus_.resize(gpus_.all.size());
    for (const auto& [cpus, gpus] : sharers) {
      const auto cores = cores_of(cpus);
      for (std::size_t i = 0; i < cores.size(); ++i) {
        std::vector<unsigned>& own = own_cpus_[gpus[i * gpus.size() / cores.size()]];
        own.insert(own.end(), cores[i].begin(), cores[i].end());
      }
      for (const std::size_t gpu : gpus) {
        if (cores.size() < gpus.size()) own_cpus_[gpu] = cpus;
        std::ranges::sort(own_cpus_[gpu]);
      }
    }
  }

  static void add_nics(TopologyGroup& group, Dealt& kind, const std::vector<std::size_t>& cards,
                       const PciDevice& place) {
    const std::size_t first = group.nics.size();
    for (const std::size_t card : cards) {
      kind.in_a_group.insert(card);
      TopologyNic& nic = group.nics.emplace_back(kind.nics[card].what);
      nic.nearness = nearness_of(place, kind.nics[card].place);
    }
    const auto begin = group.nics.begin() + static_cast<std::ptrdiff_t>(first);
    std::stable_sort(begin, group.nics.end(),
                     [](const TopologyNic& a, const TopologyNic& b) { return a.nearness < b.nearness; });
  }

  void add_gpu(const TopologyGpu& gpu) {
    const auto found = std::ranges::find(gpus_.all, gpu.pci, &PciDevice::address);
    if (found == gpus_.all.end()) return;
    const auto at = static_cast<std::size_t>(found - gpus_.all.begin());
    TopologyGroup& group = made_.groups.emplace_back();
    group.gpu = gpu;
    group.numa_node = found->numa_node;
    group.cpus = usable_cpus_near(found->numa_node);
    group.own_cpus = own_cpus_[at];
    for (Dealt& kind : kinds_) add_nics(group, kind, kind.hands[at], *found);
    if (found->numa_node) nodes_with_gpu_.insert(*found->numa_node);
  }

  void add_node(unsigned node) {
    std::vector<unsigned> cpus = cpus_.usable_cpus_of(node);
    if (cpus.empty() && cpus_.nodes().size() == 1) cpus = usable_cpus_near(node);
    if (cpus.empty() || nodes_with_gpu_.contains(node)) return;
    TopologyGroup& group = made_.groups.emplace_back();
    group.numa_node = node;
    group.own_cpus = cpus;
    group.cpus = std::move(cpus);
    PciDevice place;
    place.numa_node = node;
    for (Dealt& kind : kinds_) add_nics(group, kind, cards_near(kind, node), place);
  }

  /// The cards of a node; without one, those of the machine.
  static std::vector<std::size_t> cards_near(const Dealt& kind, unsigned node) {
    std::vector<std::size_t> near, all;
    for (std::size_t i = 0; i < kind.nics.size(); ++i) {
      all.push_back(i);
      if (kind.nics[i].what.numa_node == node) near.push_back(i);
    }
    return near.empty() ? all : near;
  }

  void name_the_rest(const Dealt& kind) {
    for (std::size_t i = 0; i < kind.nics.size(); ++i)
      if (!kind.in_a_group.contains(i)) made_.left_out.push_back({kind.nics[i].what, why_left(kind, i)});
  }

  [[nodiscard]] std::string why_left(const Dealt& kind, std::size_t card) const {
    for (std::size_t i = 0; i < kind.hands.size(); ++i)
      if (std::ranges::count(kind.hands[i], card) > 0)
        return "it is that of GPU " + gpus_.all[i].address + ", which this process does not see";
    const std::optional<unsigned> node = kind.nics[card].what.numa_node;
    if (node && cpus_.usable_cpus_of(*node).empty())
      return "this process may use no CPU of its NUMA node " + std::to_string(*node);
    return "every GPU near it has a nearer one";
  }

  const Topology& cpus_;
  SeenGpus gpus_;
  std::vector<Dealt> kinds_;
  std::vector<std::vector<unsigned>> own_cpus_;  ///< for each GPU of the machine
  std::set<unsigned> nodes_with_gpu_;
  DetectedTopology made_;
};

}  // namespace

DetectedTopology make_groups(const Topology& cpus, SeenGpus gpus, NicList nics) {
  return GroupMaker(cpus, std::move(gpus), std::move(nics)).make();
}

SeenGpus read_gpus(const std::string& root, std::optional<std::vector<TopologyGpu>> by_driver) {
  PciGpus found = read_pci_gpus(root);
  SeenGpus gpus{std::move(found.all), {}};
  if (by_driver) {
    gpus.shown = *std::move(by_driver);
  } else {
    for (std::string& address : found.shown) gpus.shown.push_back({std::move(address), std::nullopt, {}});
  }
  for (TopologyGpu& gpu : gpus.shown) {
    std::ranges::transform(gpu.pci, gpu.pci.begin(), [](unsigned char c) { return std::tolower(c); });
    // A sandbox may hide a GPU from /sys alone.
    if (std::ranges::count(gpus.all, gpu.pci, &PciDevice::address) == 0) {
      PciDevice& unplaced = gpus.all.emplace_back();
      unplaced.address = gpu.pci;
    }
  }
  std::ranges::sort(gpus.all, pci_address_less, &PciDevice::address);
  return gpus;
}

Topology read_cpus(const std::string& root, CpuLimits limits) {
  if (auto layout = read_sysfs_layout(root)) return {*std::move(layout), std::move(limits), "/sys"};
  MachineLayout one;
  for (const unsigned cpu : limits.cpus) one.cpus.push_back({cpu, cpu, 0});
  one.nodes.push_back({0, limits.cpus, 0});
  put_in_order(one);
  return {std::move(one), std::move(limits), "the scheduler"};
}

Topology read_all_cpus(const std::string& root) {
  CpuLimits all;
  if (const auto layout = read_sysfs_layout(root))
    for (const Cpu& cpu : layout->cpus) all.cpus.push_back(cpu.id);
  return read_cpus(root, std::move(all));
}

}  // namespace headrace
