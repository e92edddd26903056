// SPDX-License-Identifier: Apache-2.0
// What a prepared list is made of, and the backend handles behind its regions.
#pragma once

#include "engine/local_regions.hpp"
#include "engine/peer_life.hpp"
#include "memory/page_list.hpp"
#include "memory/page_view.hpp"

#include <algorithm>
#include <optional>

namespace headrace {

/// Immutable but for two caches: the handles of its regions for each path, and the epoch at which all were
/// last seen alive.
struct PageList::State {
  std::shared_ptr<engine::PeerLife> life;  ///< whose memory; null: our own
  bool far_side = false;                   ///< our own, as the remote side of a transfer to ourselves
  std::string peer;                        ///< the peer's name; empty: our own

  PageColumns columns;
  std::optional<PageShape> shape;  ///< of each page; none: one stretch

  std::vector<std::uint32_t> sorted_ids;     ///< those of the columns, rising
  std::vector<std::uint32_t> read_only_ids;  ///< those of them that may not be written: mostly none
  std::vector<std::shared_ptr<engine::LocalRegion>>
      local_regions;  ///< of our own lists, in the order of the columns' ids

  mutable std::atomic<std::uint64_t> checked_epoch{0};

  using Handles = std::shared_ptr<const std::vector<void*>>;

  /// The ranges rise.
  [[nodiscard]] bool touches(std::span<const engine::IdRange> ranges) const {
    if (sorted_ids.size() < ranges.size())
      return std::ranges::any_of(sorted_ids, [&](std::uint32_t id) { return engine::contains(ranges, id); });
    return std::any_of(ranges.begin(), ranges.end(), [&](const engine::IdRange& range) {
      const auto at = std::lower_bound(sorted_ids.begin(), sorted_ids.end(), range.first);
      return at != sorted_ids.end() && *at - range.first < range.count;
    });
  }

  [[nodiscard]] headrace_side_v1 side(const Handles& handles,
                                      const std::vector<std::uint32_t>& indices) const {
    headrace_side_v1 s{};
    s.struct_size = sizeof s;
    s.regions = handles ? handles->data() : nullptr;
    s.region_count = handles ? handles->size() : columns.region_ids.size();
    s.columns = columns.view(indices);
    return s;
  }

  /// Handles found before for this path (a link's token, or an instance's address for our own sides).
  [[nodiscard]] Handles remembered(std::uint64_t path) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, handles] : handles_)
      if (key == path) return handles;
    return nullptr;
  }
  Handles remember(std::uint64_t path, std::vector<void*> found) const {
    auto handles = std::make_shared<const std::vector<void*>>(std::move(found));
    const std::lock_guard lock(mutex_);
    if (handles_.size() >= 8) handles_.erase(handles_.begin());  // links come and go: keep the latest few
    handles_.emplace_back(path, handles);
    return handles;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<std::uint64_t, Handles>> handles_;
};

}  // namespace headrace
