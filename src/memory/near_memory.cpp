// SPDX-License-Identifier: Apache-2.0
#include "memory/near_memory.hpp"

#include "base/affinity.hpp"
#include "topology/memory_nodes.hpp"

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

ThreadSystem system_of(const std::shared_ptr<const Topology>& topology) {
  return {
      [topology](const void* address) {
        const auto node = topology->node_of_address(address);
        return node ? std::optional(*node) : std::nullopt;
      },
      [] {
        auto cpus = read_affinity();
        return cpus ? *std::move(cpus) : std::vector<unsigned>();
      },
      [](std::span<const unsigned> cpus) { return static_cast<bool>(set_affinity(cpus)); },
  };
}

}  // namespace

CopyPlaces::CopyPlaces(const Topology& topology, ThreadSystem system) : system_(std::move(system)) {
  for (const NumaNode& node : topology.nodes()) {
    nodes_.push_back(std::make_unique<Node>());
    nodes_.back()->id = node.id;
    nodes_.back()->cpus = topology.usable_cpus_of(node.id);
  }
}

std::unique_ptr<CopyPlaces> CopyPlaces::read() {
  if (read_memory_nodes("").size() < 2) return nullptr;
  auto read = Topology::read();
  if (!read) return nullptr;
  const auto topology = std::make_shared<const Topology>(*std::move(read));
  return std::make_unique<CopyPlaces>(*topology, system_of(topology));
}

CopyPlaces::Node* CopyPlaces::find(unsigned node) {
  const auto found = std::ranges::find(nodes_, node, [](const auto& each) { return each->id; });
  return found == nodes_.end() ? nullptr : found->get();
}

NearMemory::~NearMemory() { leave(); }

void NearMemory::write_to(const void* address) {
  if (places_ == nullptr) return;
  const auto node = places_->system_.node_of(address);
  if (!node || (at_ != nullptr && at_->id == *node)) return;
  leave();
  CopyPlaces::Node* const place = places_->find(*node);
  if (place == nullptr || place->cpus.empty()) return;  // memory without CPUs, or without any of ours
  if (place->threads.fetch_add(1, std::memory_order_relaxed) < place->cpus.size()) {
    before_ = places_->system_.affinity();
    if (!before_.empty() && places_->system_.set_affinity(place->cpus)) {
      at_ = place;
      return;
    }
  }
  place->threads.fetch_sub(1, std::memory_order_relaxed);
}

void NearMemory::leave() {
  if (at_ == nullptr) return;
  (void)places_->system_.set_affinity(before_);
  at_->threads.fetch_sub(1, std::memory_order_relaxed);
  at_ = nullptr;
}

}  // namespace headrace
