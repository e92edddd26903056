// SPDX-License-Identifier: Apache-2.0
#include "topology/deal.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

namespace headrace {
namespace {

/// A part of the machine that holds devices: a bridge and all below it, a NUMA node, the machine.
struct Enclosure {
  enum class Kind { pci_switch, host_bridge, numa_node, machine };
  Kind kind = Kind::machine;
  std::size_t depth = 0;  ///< of a bridge
  std::string bridge;
  unsigned node = 0;

  [[nodiscard]] bool holds(const PciDevice& device) const {
    if (kind == Kind::machine) return true;
    if (kind == Kind::numa_node) return device.numa_node == node;
    return depth < device.bridges.size() && device.bridges[depth] == bridge;
  }

  /// Bridges from the leaves up, then nodes, then the machine.
  [[nodiscard]] auto order() const {
    const int rank = kind == Kind::machine ? 2 : kind == Kind::numa_node ? 1 : 0;
    return std::tuple(rank, ~depth, node, bridge);
  }
  friend bool operator<(const Enclosure& a, const Enclosure& b) { return a.order() < b.order(); }
};

using Kind = Enclosure::Kind;

std::vector<Enclosure> enclosures_of(std::span<const PciDevice> devices) {
  std::vector<Enclosure> found{{}};
  for (const PciDevice& device : devices) {
    if (device.numa_node) found.push_back({Kind::numa_node, 0, {}, *device.numa_node});
    for (std::size_t depth = 0; depth < device.bridges.size(); ++depth) {
      const std::string& name = device.bridges[depth];
      found.push_back({is_pci_address(name) ? Kind::pci_switch : Kind::host_bridge, depth, name});
    }
  }
  std::ranges::sort(found, std::less<>());
  found.erase(std::unique(found.begin(), found.end(),
                          [](const Enclosure& a, const Enclosure& b) { return a.order() == b.order(); }),
              found.end());
  return found;
}

class Dealer {
 public:
  Dealer(std::span<const PciDevice> takers, std::span<const Nic> nics)
      : takers_(takers), nics_(nics), hands_(takers.size()), dealt_(nics.size()) {}

  std::vector<std::vector<std::size_t>> deal() {
    for (const Enclosure& enclosure : enclosures_of(takers_)) deal_in(enclosure);
    for (auto& hand : hands_) std::ranges::sort(hand);
    return std::move(hands_);
  }

 private:
  void deal_in(const Enclosure& enclosure) {
    std::vector<std::size_t> takers, empty, cards, fresh;
    for (std::size_t i = 0; i < takers_.size(); ++i) {
      if (!enclosure.holds(takers_[i])) continue;
      takers.push_back(i);
      if (hands_[i].empty()) empty.push_back(i);
    }
    for (std::size_t i = 0; i < nics_.size(); ++i) {
      if (!enclosure.holds(nics_[i].place)) continue;
      cards.push_back(i);
      if (!dealt_[i]) fresh.push_back(i);
    }
    if (!empty.empty() && !fresh.empty())
      in_turn(empty, fresh);
    else if (!fresh.empty() && enclosure.kind == Kind::pci_switch)
      add_to_fewest(takers, fresh);
    else if (enclosure.kind >= Kind::numa_node)
      for (const std::size_t taker : empty) hands_[taker] = cards;
  }

  void give(std::size_t taker, std::size_t card) {
    hands_[taker].push_back(card);
    dealt_[card] = true;
  }

  void in_turn(const std::vector<std::size_t>& takers, const std::vector<std::size_t>& cards) {
    const std::size_t rounds = std::max(takers.size(), cards.size());
    for (std::size_t i = 0; i < rounds; ++i) give(takers[i % takers.size()], cards[i % cards.size()]);
  }

  void add_to_fewest(const std::vector<std::size_t>& takers, const std::vector<std::size_t>& cards) {
    for (const std::size_t card : cards)
      give(*std::ranges::min_element(takers, {}, [&](std::size_t taker) { return hands_[taker].size(); }),
           card);
  }

  const std::span<const PciDevice> takers_;
  const std::span<const Nic> nics_;
  std::vector<std::vector<std::size_t>> hands_;
  std::vector<bool> dealt_;
};

}  // namespace

std::vector<std::vector<std::size_t>> deal_nics(std::span<const PciDevice> takers,
                                                std::span<const Nic> nics) {
  return Dealer(takers, nics).deal();
}

std::vector<Nic> without_odd_models(std::vector<Nic> nics, std::vector<LeftOutNic>& left_out) {
  struct Model {
    std::size_t count = 0;
    std::uint64_t speed_mbit = 0;
  };
  std::map<std::string, Model> models;
  for (const Nic& nic : nics) {
    if (nic.what.model.empty()) continue;
    Model& model = models[nic.what.model];
    ++model.count;
    model.speed_mbit = std::max(model.speed_mbit, nic.what.speed_mbit);
  }
  if (models.size() < 2) return nics;
  const auto most = std::ranges::max_element(
      models, {}, [](const auto& entry) { return std::pair(entry.second.count, entry.second.speed_mbit); });
  std::vector<Nic> kept;
  for (Nic& nic : nics) {
    if (nic.what.model.empty() || nic.what.model == most->first) {
      kept.push_back(std::move(nic));
      continue;
    }
    std::string reason = fmt::format(
        "it is of model {}, and {} of model {}", nic.what.model,
        most->second.count == 1 ? "a faster one is" : fmt::format("{} others are", most->second.count),
        most->first);
    left_out.push_back({std::move(nic.what), std::move(reason)});
  }
  return kept;
}

}  // namespace headrace
