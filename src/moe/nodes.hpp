// SPDX-License-Identifier: Apache-2.0
// Which ranks share a node. Ranks of a node lie in a row; the last node may have fewer.
#pragma once

#include "moe/routing.hpp"

#include <headrace/moe.hpp>

#include <algorithm>
#include <cstdint>

namespace headrace::moe {

struct Nodes {
  std::uint32_t ranks = 1;
  std::uint32_t per_node = 1;  ///< 1 to ranks

  [[nodiscard]] static Nodes of(const MoEConfig& config) {
    const int per_node = config.ranks_per_node == 0 ? config.ranks : config.ranks_per_node;
    return {static_cast<std::uint32_t>(config.ranks), static_cast<std::uint32_t>(per_node)};
  }
  [[nodiscard]] std::uint32_t count() const { return (ranks + per_node - 1) / per_node; }
  [[nodiscard]] std::uint32_t node_of(std::uint32_t rank) const { return rank / per_node; }
  [[nodiscard]] bool are_near(std::uint32_t a, std::uint32_t b) const { return node_of(a) == node_of(b); }
  [[nodiscard]] std::uint32_t index_of(std::uint32_t rank) const { return rank % per_node; }
  /// The rank of a node with the index that this one has in its own; no_rank: it has none.
  [[nodiscard]] std::uint32_t like(std::uint32_t rank, std::uint32_t node) const {
    const std::uint32_t found = first(node) + index_of(rank);
    return found < ranks ? found : no_rank;
  }
  [[nodiscard]] std::uint32_t first(std::uint32_t node) const { return node * per_node; }
  [[nodiscard]] Mask mask_of(std::uint32_t node) const {
    return mask_of_all(std::min(ranks, first(node) + per_node)) & ~(bit_of(first(node)) - 1);
  }
};

}  // namespace headrace::moe
