// SPDX-License-Identifier: Apache-2.0
#include "engine/remote_regions.hpp"

#include <algorithm>
#include <iterator>

namespace headrace::engine {

bool RemoteRegions::Left::has(std::uint32_t id) const {
  return std::ranges::binary_search(gone, id) || std::ranges::binary_search(older, id);
}

RemoteRegions::Left RemoteRegions::merge(std::vector<std::uint32_t> ids, std::vector<RemoteRegion> rows,
                                         bool may_be_new) {
  Left left;
  if (ids_.empty() && may_be_new) {
    ids_ = std::move(ids);
    rows_ = std::move(rows);
    return left;
  }
  std::vector<std::uint32_t> all_ids;
  std::vector<RemoteRegion> all_rows;
  all_ids.reserve(ids_.size() + ids.size());
  all_rows.reserve(ids_.size() + ids.size());
  const auto take = [&](std::uint32_t id, const RemoteRegion& row) {
    all_ids.push_back(id);
    all_rows.push_back(row);
  };
  std::size_t a = 0;
  for (std::size_t b = 0; b < ids.size(); ++b) {
    for (; a < ids_.size() && ids_[a] < ids[b]; ++a) take(ids_[a], rows_[a]);
    const bool known = a < ids_.size() && ids_[a] == ids[b];
    if (known && rows_[a].version > rows[b].version) {
      left.older.push_back(ids[b]);
      take(ids_[a], rows_[a]);
    } else if (known || may_be_new) {
      take(ids[b], rows[b]);
    } else {
      left.gone.push_back(ids[b]);
    }
    if (known) ++a;
  }
  for (; a < ids_.size(); ++a) take(ids_[a], rows_[a]);
  ids_ = std::move(all_ids);
  rows_ = std::move(all_rows);
  return left;
}

void RemoteRegions::erase_details(std::uint32_t id) {
  if (const auto at = named_.find(id); at != named_.end()) {
    // A later region may have the name by now.
    const auto by_name = by_name_.find(at->second.first);
    if (by_name != by_name_.end() && by_name->second == id) by_name_.erase(by_name);
    detail_bytes_ -= bytes_a_detail + at->second.first.size() + at->second.second.size();
    named_.erase(at);
  }
  const auto first = public_.lower_bound({id, 0});
  const auto end = public_.upper_bound({id, UINT32_MAX});
  for (auto at = first; at != end; ++at)
    if (!at->second.empty()) detail_bytes_ -= bytes_a_detail + at->second.size();
  public_.erase(first, end);
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

void RemoteRegions::keep_only(std::span<const std::uint32_t> ids, std::uint64_t end) {
  erase_those([ids, end, at = std::size_t{0}](std::uint32_t id) mutable {
    while (at < ids.size() && ids[at] < id) ++at;
    return id < end && (at == ids.size() || ids[at] != id);
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
  if (const auto at = named_.find(id); at != named_.end())
    detail_bytes_ -= bytes_a_detail + at->second.first.size() + at->second.second.size();
  detail_bytes_ += bytes_a_detail + name.size() + note.size();
  if (!name.empty()) {
    std::uint32_t& newest = by_name_[name];
    newest = std::max(newest, id);
  }
  named_[id] = {std::move(name), std::move(note)};
}

void RemoteRegions::set_public(std::uint32_t id, std::uint32_t backend, std::string bytes) {
  std::string& held = public_[{id, backend}];
  if (!held.empty()) detail_bytes_ -= bytes_a_detail + held.size();
  if (!bytes.empty()) detail_bytes_ += bytes_a_detail + bytes.size();
  held = std::move(bytes);
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
