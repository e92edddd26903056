// SPDX-License-Identifier: Apache-2.0
#include "engine/remote_regions.hpp"

#include <algorithm>

namespace headrace::engine {

void RemoteRegions::merge(std::vector<std::uint32_t> ids, std::vector<RemoteRegion> rows) {
  if (ids_.empty()) {
    ids_ = std::move(ids);
    rows_ = std::move(rows);
    return;
  }
  std::vector<std::uint32_t> all_ids;
  std::vector<RemoteRegion> all_rows;
  all_ids.reserve(ids_.size() + ids.size());
  all_rows.reserve(ids_.size() + ids.size());
  std::size_t a = 0;
  std::size_t b = 0;
  while (a < ids_.size() || b < ids.size()) {
    const bool ours = b == ids.size() || (a < ids_.size() && ids_[a] < ids[b]);
    if (!ours && a < ids_.size() && ids_[a] == ids[b]) ++a;  // replaced
    all_ids.push_back(ours ? ids_[a] : ids[b]);
    all_rows.push_back(ours ? rows_[a] : rows[b]);
    ++(ours ? a : b);
  }
  ids_ = std::move(all_ids);
  rows_ = std::move(all_rows);
}

void RemoteRegions::erase_details(std::uint32_t id) {
  if (const auto at = named_.find(id); at != named_.end()) {
    by_name_.erase(at->second.first);
    named_.erase(at);
  }
  public_.erase(public_.lower_bound({id, 0}), public_.upper_bound({id, UINT32_MAX}));
}

/// Asks `goes` of the ids in rising order.
template <class Goes>
void RemoteRegions::erase_those(Goes goes) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    if (goes(ids_[i])) {
      erase_details(ids_[i]);
      continue;
    }
    ids_[kept] = ids_[i];
    rows_[kept++] = rows_[i];
  }
  ids_.resize(kept);
  rows_.resize(kept);
}

void RemoteRegions::erase(std::span<const IdRange> gone) {
  erase_those([gone, range = std::size_t{0}](std::uint32_t id) mutable {
    while (range < gone.size() && std::uint64_t{gone[range].first} + gone[range].count <= id) ++range;
    return range < gone.size() && id >= gone[range].first;
  });
}

void RemoteRegions::keep_only(std::span<const std::uint32_t> ids) {
  erase_those([ids, at = std::size_t{0}](std::uint32_t id) mutable {
    while (at < ids.size() && ids[at] < id) ++at;
    return at == ids.size() || ids[at] != id;
  });
}

const RemoteRegion* RemoteRegions::find(std::uint32_t id) const {
  if (ids_.empty() || id < ids_.front()) return nullptr;
  const std::size_t guess = id - ids_.front();  // ids that count up are the rule
  if (guess < ids_.size() && ids_[guess] == id) return &rows_[guess];
  const auto at = std::lower_bound(ids_.begin(), ids_.end(), id);
  return at != ids_.end() && *at == id ? &rows_[static_cast<std::size_t>(at - ids_.begin())] : nullptr;
}

void RemoteRegions::set_name(std::uint32_t id, std::string name, std::string note) {
  if (!name.empty()) by_name_[name] = id;
  named_[id] = {std::move(name), std::move(note)};
}

std::optional<std::uint32_t> RemoteRegions::find_name(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at != by_name_.end() ? std::optional(at->second) : std::nullopt;
}

const std::pair<std::string, std::string>* RemoteRegions::name_and_note(std::uint32_t id) const {
  const auto at = named_.find(id);
  return at != named_.end() ? &at->second : nullptr;
}

std::string_view RemoteRegions::public_data(std::uint32_t id, std::uint32_t backend) const {
  const auto at = public_.find({id, backend});
  return at != public_.end() ? std::string_view(at->second) : std::string_view();
}

}  // namespace headrace::engine
