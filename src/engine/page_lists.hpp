// SPDX-License-Identifier: Apache-2.0
// Preparing page lists: every page is checked against its region once.
#pragma once

#include "engine/call_gate.hpp"
#include "engine/local_regions.hpp"
#include "engine/page_list_state.hpp"
#include "engine/peers.hpp"
#include "engine/self.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace headrace::engine {

using PageListState = std::shared_ptr<const PageList::State>;

/// The side of a request that a list is for.
struct Side {
  /// Our own memory, on the local side.
  static Side local() { return {}; }
  /// The memory of this peer, or of this agent itself on the remote side.
  static Side remote(std::string_view peer) { return {peer}; }

  std::optional<std::string_view> peer;
};

class PageLists {
 public:
  PageLists(const Self& self, const CallGate& calls, LocalRegions& regions, const Peers& peers)
      : self_(self), calls_(calls), regions_(regions), peers_(peers) {}

  Result<PageListState> prepare(Side side, const PageSpec& spec);

  /// not_found if a region of the list has gone since, peer_lost if its peer has; quick while nothing has.
  [[nodiscard]] Status still_valid(const PageList::State& list) const;

 private:
  /// The owner of a list's regions.
  struct Owner {
    std::shared_ptr<PeerLife> life = {};  // null: this agent
    bool far_side = false;
  };
  using Shape = std::optional<PageShape>;  // of each page; none: it is contiguous
  Result<PageListState> prepare_pages(const Owner& owner, std::span<const AddressPage> pages, Shape shape);
  Result<PageListState> prepare_pages(const Owner& owner, std::span<const Page> pages, Shape shape);
  Result<PageListState> prepare_pages(const Owner& owner, const UniformPages& pages, Shape shape);
  Result<PageListState> prepare_pages(const Owner& owner, const RegionPages& pages, const Shape& shape);
  [[nodiscard]] Result<Owner> owner_of(Side side) const;
  [[nodiscard]] Result<std::uint64_t> region_length(const Owner& owner, RegionId region) const;
  Result<PageListState> finish(std::shared_ptr<PageList::State> list, const Owner& owner) const;
  Result<void> take_local_regions(PageList::State& list) const;

  const Self& self_;
  const CallGate& calls_;
  LocalRegions& regions_;
  const Peers& peers_;
};

}  // namespace headrace::engine
