// SPDX-License-Identifier: Apache-2.0
#include "engine/revoked_ids.hpp"

#include <algorithm>
#include <iterator>

namespace headrace::engine {

void RevokedIds::add(std::span<const IdRange> ranges, std::uint64_t version) {
  latest_ = std::max(latest_, version);
  for (const IdRange& range : ranges) {
    std::uint64_t first = range.first;
    Revoked whole{first + range.count, version};
    auto at = by_first_.upper_bound(whole.end);
    while (at != by_first_.begin() && std::prev(at)->second.end >= first) {
      --at;
      first = std::min(first, at->first);
      whole = {std::max(whole.end, at->second.end), std::max(whole.version, at->second.version)};
      at = by_first_.erase(at);
    }
    by_first_.emplace(first, whole);
  }
  if (by_first_.size() <= most_ranges) return;
  by_first_.clear();
  forgotten_ = latest_;
}

bool RevokedIds::hides(std::uint32_t id, std::uint64_t version) const {
  const auto after = by_first_.upper_bound(id);
  if (after == by_first_.begin()) return false;
  const Revoked& revoked = std::prev(after)->second;
  return id < revoked.end && version < revoked.version;
}

std::size_t RevokedIds::take_out(wire::Metadata& m, std::vector<RemoteRegion>& rows) const {
  if (m.version >= latest_ || by_first_.empty()) return 0;
  const std::size_t before = m.ids.size();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < m.ids.size(); ++i) {
    if (hides(m.ids[i], m.version)) continue;
    m.ids[kept] = m.ids[i];
    rows[kept++] = rows[i];
  }
  m.ids.resize(kept);
  rows.resize(kept);
  std::erase_if(m.named, [&](const auto& named) { return hides(named.id, m.version); });
  std::erase_if(m.public_data, [&](const auto& data) { return hides(data.id, m.version); });
  return before - kept;
}

}  // namespace headrace::engine
