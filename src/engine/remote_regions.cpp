// SPDX-License-Identifier: Apache-2.0
#include "engine/remote_regions.hpp"

#include "memory/rising_ids.hpp"

#include <algorithm>
#include <utility>

namespace headrace::engine {

bool RemoteRegions::Left::has(std::uint32_t id) const {
  return std::ranges::binary_search(gone, id) || std::ranges::binary_search(older, id);
}

RemoteRegions::Left RemoteRegions::merge(std::vector<std::uint32_t> ids, std::vector<RemoteRegion> rows,
                                         bool may_be_new) {
  Left left;
  if (live_ == 0 && may_be_new) {
    live_ = ids.size();
    ids_ = std::move(ids);
    rows_ = std::move(rows);
    return left;
  }
  std::size_t between = 0;  // so many, kept at the beginning of both columns, lie before the last row
  std::size_t at = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    at = row_from(ids[i], at);
    if (merge_at(at, ids[i], rows[i], may_be_new, left)) continue;
    ids[between] = ids[i];
    rows[between++] = rows[i];
  }
  insert(std::span(ids).first(between), std::span(rows).first(between));
  return left;
}

/// `row`: the first whose id is not lower. False: the region needs a row of its own before that one.
bool RemoteRegions::merge_at(std::size_t row, std::uint32_t id, const RemoteRegion& region, bool may_be_new,
                             Left& left) {
  const bool has_row = row < ids_.size() && ids_[row] == id;
  const bool known = has_row && !rows_[row].gone;
  if (known && rows_[row].version > region.version) {
    left.older.push_back(id);
  } else if (!known && !may_be_new) {
    left.gone.push_back(id);
  } else if (has_row) {
    rows_[row] = region;
    if (!known) ++live_;
  } else if (row == ids_.size()) {
    append(id, region);
  } else {
    return false;
  }
  return true;
}

namespace {

/// A quarter more than there is: regions that come one by one are rarely copied, and little room stays empty.
template <class Column>
void make_room(Column& column, std::size_t more) {
  const std::size_t needed = column.size() + more;
  if (needed > column.capacity()) column.reserve(std::max(needed, column.size() + column.size() / 4));
}

}  // namespace

void RemoteRegions::append(std::uint32_t id, const RemoteRegion& region) {
  make_room(ids_, 1);
  make_room(rows_, 1);
  ids_.push_back(id);
  rows_.push_back(region);
  ++live_;
}

/// None of them has a row, and all lie before the last one.
void RemoteRegions::insert(std::span<const std::uint32_t> ids, std::span<const RemoteRegion> rows) {
  if (ids.empty()) return;
  std::size_t from = ids_.size();
  make_room(ids_, ids.size());
  make_room(rows_, ids.size());
  ids_.resize(from + ids.size());
  rows_.resize(from + ids.size());
  live_ += ids.size();
  for (std::size_t left = ids.size(); left > 0; --left) {
    for (; from > 0 && ids_[from - 1] > ids[left - 1]; --from) {
      ids_[from - 1 + left] = ids_[from - 1];
      rows_[from - 1 + left] = rows_[from - 1];
    }
    ids_[from + left - 1] = ids[left - 1];
    rows_[from + left - 1] = rows[left - 1];
  }
}

/// The first row from `first` on whose id is not lower. A near one is found in few steps.
std::size_t RemoteRegions::row_from(std::uint32_t id, std::size_t first) const {
  std::size_t step = 1;
  for (; step < ids_.size() - first && ids_[first + step] < id; step *= 2) first += step;
  const auto begin = ids_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = begin + static_cast<std::ptrdiff_t>(std::min(step + 1, ids_.size() - first));
  return static_cast<std::size_t>(std::lower_bound(begin, end, id) - ids_.begin());
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

void RemoteRegions::erase_row(std::size_t row) {
  if (std::exchange(rows_[row].gone, true)) return;
  erase_details(ids_[row]);
  --live_;
}

void RemoteRegions::drop_gone_rows() {
  if (ids_.size() <= 2 * live_) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    if (rows_[i].gone) continue;
    ids_[kept] = ids_[i];
    rows_[kept++] = rows_[i];
  }
  ids_.resize(kept);
  rows_.resize(kept);
  ids_.shrink_to_fit();
  rows_.shrink_to_fit();
}

void RemoteRegions::erase(std::span<const IdRange> gone) {
  std::size_t at = 0;
  for (const IdRange& range : gone) {
    const std::uint64_t end = std::uint64_t{range.first} + range.count;
    for (at = row_from(range.first, at); at < ids_.size() && ids_[at] < end; ++at) erase_row(at);
  }
  drop_gone_rows();
}

void RemoteRegions::keep_only(std::span<const std::uint32_t> ids, std::uint64_t end) {
  std::size_t at = 0;
  for (std::size_t row = 0; row < ids_.size() && ids_[row] < end; ++row) {
    while (at < ids.size() && ids[at] < ids_[row]) ++at;
    if (at == ids.size() || ids[at] != ids_[row]) erase_row(row);
  }
  drop_gone_rows();
}

const RemoteRegion* RemoteRegions::find(std::uint32_t id) const {
  const std::size_t row = find_rising(id, ids_.size(), [this](std::size_t i) { return ids_[i]; });
  return row < ids_.size() && !rows_[row].gone ? &rows_[row] : nullptr;
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
