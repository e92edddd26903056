// SPDX-License-Identifier: Apache-2.0
// Which network cards belong to which GPU: cards of a PCI switch are dealt to its GPUs.
#pragma once

#include "topology/nics.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace headrace {

/// The cards of each taker (a GPU), as indices into `nics`, ascending.
///
/// The tree of bridges is walked from its leaves to the root complexes, then NUMA nodes, then the machine.
/// Cards below a bridge are dealt in turn to the takers below it that have none; more takers than cards share
/// them. Below a switch, cards that are left then go in turn to takers that have some, fewest first. A taker
/// that has none when its NUMA node is looked at, and all cards there are dealt, takes all of them; the same
/// for the machine.
///   takers, nics   by PCI address
[[nodiscard]] std::vector<std::vector<std::size_t>> deal_nics(std::span<const PciDevice> takers,
                                                              std::span<const Nic> nics);

/// Leaves the cards of the model that most of them have, and those of unknown model. If two models are
/// equally many, the faster one stays. The others are appended to `left_out`.
[[nodiscard]] std::vector<Nic> without_odd_models(std::vector<Nic> nics, std::vector<LeftOutNic>& left_out);

}  // namespace headrace
