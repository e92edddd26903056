// SPDX-License-Identifier: Apache-2.0
// Regions by id and by address, with the versions that metadata updates are made from. Not locked: its owner
// does that. Its memory follows the regions that are there, not those that have ever been: a caller may
// register and deregister for each request.
#pragma once

#include "memory/rising_ids.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace headrace {

/// Ids first, first + 1, ... first + count - 1.
struct RegionIdRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  friend bool operator==(const RegionIdRange&, const RegionIdRange&) = default;
};

template <class Record>
class RegionTable {
 public:
  struct Found {
    std::uint32_t id = 0;
    const Record* record = nullptr;
    std::uint64_t offset = 0;  ///< of the address in the region
  };
  struct Changes {
    std::vector<std::uint32_t> added;  ///< rising, and still there
    std::vector<RegionIdRange> gone;   ///< rising; after a long time also ids that went before, or never were
                                       ///< there for the reader
  };

  /// The new region's id: counts from 1, never used twice. `address` 0: it has none, and is found by id
  /// alone.
  std::uint32_t add(std::uint64_t address, std::uint64_t length, Record record) {
    slots_.push_back({.record = std::move(record),
                      .address = address,
                      .length = length,
                      .added_in = ++version_,
                      .id = ++last_id_});
    ++size_;
    if (address != 0) indexed_ = false;
    return last_id_;
  }
  /// From this version on updates say that it is gone. `find` has it until `remove`, or for good after
  /// `put_back`.
  void withdraw(std::uint32_t id) {
    Slot* const slot = slot_of(id);
    if (slot == nullptr || std::exchange(slot->withdrawn, true)) return;
    gone_.push_back({++version_, id});
    forget_oldest();
  }
  /// It was withdrawn, and stays after all: from this version on updates add it.
  void put_back(std::uint32_t id) {
    Slot* const slot = slot_of(id);
    if (slot == nullptr || !std::exchange(slot->withdrawn, false)) return;
    renew(id, version_);
  }
  /// If an update from version `since` on would not have it, it is new once more.
  void renew(std::uint32_t id, std::uint64_t since) {
    Slot* const slot = slot_of(id);
    if (slot == nullptr || slot->added_in > since) return;
    if (std::exchange(slot->renewed_in, ++version_) == 0) ++renewed_count_;
    renewed_.push_back({version_, id});
    drop_old_renewals();
  }
  bool remove(std::uint32_t id) {
    Slot* const slot = slot_of(id);
    if (slot == nullptr) return false;
    if (slot->address != 0) indexed_ = false;
    if (slot->renewed_in != 0) --renewed_count_;
    if (!slot->withdrawn) gone_.push_back({++version_, id});
    slot->record.reset();
    --size_;
    forget_oldest();
    drop_old_renewals();
    drop_empty_slots();
    return true;
  }

  [[nodiscard]] const Record* find(std::uint32_t id) const {
    const Slot* const slot = slot_of(id);
    return slot != nullptr ? &*slot->record : nullptr;
  }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::uint64_t version() const { return version_; }
  /// The id that the next region gets.
  [[nodiscard]] std::uint64_t next_id() const { return std::uint64_t{last_id_} + 1; }

  /// find_address works after this until the next change, so call it once for many lookups. Costs one pass
  /// over what is there already and a sort of what is new: 100,000 regions that grow by one are looked
  /// through, not sorted again.
  void index() {
    if (indexed_) return;
    std::erase_if(by_address_, [this](const Span& span) { return slot_of(span.id) == nullptr; });
    const auto known = static_cast<std::ptrdiff_t>(by_address_.size());
    for (auto slot = after(seen_id_); slot != slots_.end(); ++slot)
      if (slot->record && slot->address != 0)
        by_address_.push_back({slot->address, slot->address + slot->length, 0, slot->id});
    seen_id_ = last_id_;
    const auto before = [](const Span& a, const Span& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.id < b.id;
    };
    std::sort(by_address_.begin() + known, by_address_.end(), before);
    std::inplace_merge(by_address_.begin(), by_address_.begin() + known, by_address_.end(), before);
    std::uint64_t reach = 0;
    for (Span& span : by_address_) span.reach = reach = std::max(reach, span.end);
    indexed_ = true;
  }
  [[nodiscard]] bool indexed() const { return indexed_; }

  /// The newest region that holds all of [address, address + length). Whoever looks up many addresses keeps
  /// the last answer: the next one is mostly in the same region.
  [[nodiscard]] std::optional<Found> find_address(std::uint64_t address, std::uint64_t length) const {
    const std::uint64_t end = address + length;
    if (end < address) return std::nullopt;
    auto at = std::upper_bound(by_address_.begin(), by_address_.end(), address,
                               [](std::uint64_t a, const Span& span) { return a < span.begin; });
    std::uint32_t best = 0;
    // Backwards over all that begin before it, until none further back reaches its end.
    while (at != by_address_.begin()) {
      --at;
      if (at->reach < end) break;
      if (at->end >= end) best = std::max(best, at->id);
    }
    if (best == 0) return std::nullopt;
    const Slot& slot = *slot_of(best);
    return Found{best, &*slot.record, address - slot.address};
  }

  /// What happened after version `since`; 0: all that is there and all that is gone.
  [[nodiscard]] Changes changes_since(std::uint64_t since) const {
    Changes changes;
    const auto first = std::partition_point(slots_.begin(), slots_.end(),
                                            [since](const Slot& slot) { return slot.added_in <= since; });
    for (auto at = first; at != slots_.end(); ++at)
      if (at->record) changes.added.push_back(at->id);
    for (auto at = renewed_.rbegin(); at != renewed_.rend() && at->version > since; ++at)
      if (const Slot* const slot = renewed_by(*at); slot != nullptr && slot->added_in <= since)
        changes.added.push_back(at->id);
    std::sort(changes.added.begin(), changes.added.end());
    if (since < forgotten_until_) {
      changes.gone = missing();
      return changes;
    }
    changes.gone = gone_since(since);
    return changes;
  }

  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& slot : slots_)
      if (slot.record) visit(slot.id, *slot.record);
  }

 private:
  struct Slot {
    std::optional<Record> record;  // empty: gone
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    std::uint64_t added_in = 0;
    std::uint64_t renewed_in = 0;  // 0: never
    std::uint32_t id = 0;
    bool withdrawn = false;
  };
  struct Span {
    std::uint64_t begin, end;
    std::uint64_t reach;  // the greatest end of this and all before it
    std::uint32_t id;
  };
  struct Event {
    std::uint64_t version;
    std::uint32_t id;
  };
  // So many slots and events are kept for nothing before the first pass that drops them. Each pass halves
  // them, at least: all passes together cost no more than the changes.
  static constexpr std::size_t least_kept = 1024;

  /// The first slot behind that id.
  [[nodiscard]] auto after(std::uint32_t id) const {
    return std::partition_point(slots_.begin(), slots_.end(),
                                [id](const Slot& slot) { return slot.id <= id; });
  }
  [[nodiscard]] const Slot* slot_of(std::uint32_t id) const {
    const std::size_t at = find_rising(id, slots_.size(), [this](std::size_t i) { return slots_[i].id; });
    return at < slots_.size() && slots_[at].record ? &slots_[at] : nullptr;
  }
  [[nodiscard]] Slot* slot_of(std::uint32_t id) {
    return const_cast<Slot*>(std::as_const(*this).slot_of(id));
  }
  /// The region that this event has made new, unless it is gone or was renewed once more.
  [[nodiscard]] const Slot* renewed_by(const Event& event) const {
    const Slot* const slot = slot_of(event.id);
    return slot != nullptr && slot->renewed_in == event.version ? slot : nullptr;
  }
  void drop_empty_slots() {
    if (slots_.size() <= 2 * (size_ + least_kept)) return;
    std::erase_if(slots_, [](const Slot& slot) { return !slot.record; });
  }
  void drop_old_renewals() {
    if (renewed_.size() <= 2 * (renewed_count_ + least_kept)) return;
    std::erase_if(renewed_, [this](const Event& event) { return renewed_by(event) == nullptr; });
  }
  void forget_oldest() {
    if (gone_.size() <= 2 * (size_ + least_kept)) return;
    const auto half = gone_.begin() + static_cast<std::ptrdiff_t>(gone_.size() / 2);
    forgotten_until_ = (half - 1)->version;
    gone_.erase(gone_.begin(), half);
  }
  [[nodiscard]] std::vector<RegionIdRange> gone_since(std::uint64_t since) const {
    std::vector<std::uint32_t> ids;
    for (auto at = gone_.rbegin(); at != gone_.rend() && at->version > since; ++at) {
      const Slot* const slot = slot_of(at->id);
      if (slot == nullptr || slot->withdrawn) ids.push_back(at->id);
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    std::vector<RegionIdRange> ranges;
    for (const std::uint32_t id : ids) {
      if (!ranges.empty() && ranges.back().first + ranges.back().count == id) {
        ++ranges.back().count;
      } else {
        ranges.push_back({id, 1});
      }
    }
    return ranges;
  }
  /// All ids that were given out and are not there, or are withdrawn.
  [[nodiscard]] std::vector<RegionIdRange> missing() const {
    std::vector<RegionIdRange> ranges;
    std::uint32_t next = 1;
    const auto close_gap = [&](std::uint32_t id) {
      if (id > next) ranges.push_back({next, id - next});
      next = id + 1;
    };
    for (const Slot& slot : slots_)
      if (slot.record && !slot.withdrawn) close_gap(slot.id);
    if (last_id_ >= next) ranges.push_back({next, last_id_ - next + 1});
    return ranges;
  }

  std::vector<Slot> slots_;  // ids rise; the empty ones are dropped from time to time
  std::vector<Span> by_address_;
  std::uint32_t seen_id_ = 0;      // the last that index() has looked at
  std::vector<Event> gone_;        // by version; a region of one may have been put back; see `forget_oldest`
  std::vector<Event> renewed_;     // by version; only the latest of a region counts
  std::size_t renewed_count_ = 0;  // regions that are there and were renewed
  std::uint64_t forgotten_until_ = 0;
  std::uint32_t last_id_ = 0;
  std::size_t size_ = 0;
  std::uint64_t version_ = 0;
  bool indexed_ = true;
};

}  // namespace headrace
