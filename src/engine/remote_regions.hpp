// SPDX-License-Identifier: Apache-2.0
// What we know of a peer's regions: columns sorted by id, filled by memcpy from metadata, so that 100,000
// load in a few ms. A change of one region moves no other: a region that goes leaves its row, and all such
// rows are dropped once they are more than half. New regions have higher ids and come behind the last row.
#pragma once

#include <headrace/plugin/backend_v1.h>
#include <headrace/memory.hpp>

#include "engine/id_ranges.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::engine {

struct RemoteRegion {
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint16_t backends = 0;  ///< bit b: the peer's backend number b has it
  std::uint8_t kind = 0;
  bool writable = true;
  bool gone = false;          ///< its row stays for a while; nobody finds it
  std::uint64_t version = 0;  ///< of the metadata that said so last

  /// As a backend loads it. `public_data` is used by the result.
  [[nodiscard]] headrace_remote_region_v1 to_c(std::uint32_t id, std::string_view public_data) const {
    headrace_remote_region_v1 c{};
    c.struct_size = sizeof c;
    c.region_id = id;
    c.kind = kind;
    c.address = address;
    c.length = length;
    c.public_data = {public_data.data(), public_data.size()};
    return c;
  }
};

/// Metadata comes in any order: what is later of a region is kept. RevokedIds keeps away what was revoked.
/// Not locked: its owner does that.
class RemoteRegions {
 public:
  /// What was not taken of a merge, ids rising.
  struct Left {
    std::vector<std::uint32_t> gone;   ///< they have been revoked since
    std::vector<std::uint32_t> older;  ///< later metadata has spoken of them
    [[nodiscard]] bool has(std::uint32_t id) const;
  };
  /// Adds regions; ids strictly rising. `may_be_new`: those that are not known are added, else they are gone.
  /// Costs these regions, and the rows behind the first one that comes in between.
  Left merge(std::vector<std::uint32_t> ids, std::vector<RemoteRegion> regions, bool may_be_new);
  /// They are gone; `gone` is in rising order. Costs the regions that go.
  void erase(std::span<const IdRange> gone);
  /// Drops every region below `end` that is not in `ids` (rising).
  void keep_only(std::span<const std::uint32_t> ids, std::uint64_t end);

  [[nodiscard]] const RemoteRegion* find(std::uint32_t id) const;
  [[nodiscard]] std::size_t size() const { return live_; }
  /// Of memory that they take here, roughly.
  [[nodiscard]] std::size_t bytes() const {
    return ids_.size() * (sizeof(std::uint32_t) + sizeof(RemoteRegion)) + detail_bytes_;
  }
  /// Ids rising.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t i = 0; i < ids_.size(); ++i)
      if (!rows_[i].gone) visit(ids_[i], rows_[i]);
  }

  void set_name(std::uint32_t id, std::string name, std::string note);
  [[nodiscard]] std::optional<std::uint32_t> find_name(std::string_view name) const;
  [[nodiscard]] const std::pair<std::string, std::string>* name_and_note(std::uint32_t id) const;
  void set_public(std::uint32_t id, std::uint32_t backend, std::string bytes);
  [[nodiscard]] std::string_view public_data(std::uint32_t id, std::uint32_t backend) const;

 private:
  [[nodiscard]] std::size_t row_from(std::uint32_t id, std::size_t first) const;
  bool merge_at(std::size_t row, std::uint32_t id, const RemoteRegion& region, bool may_be_new, Left& left);
  void append(std::uint32_t id, const RemoteRegion& region);
  void insert(std::span<const std::uint32_t> ids, std::span<const RemoteRegion> rows);
  void erase_row(std::size_t row);
  void erase_details(std::uint32_t id);
  void drop_gone_rows();

  static constexpr std::size_t bytes_a_detail = 128;  ///< of a map's node

  std::size_t detail_bytes_ = 0;  // of the names, notes and data
  std::size_t live_ = 0;          // rows whose regions are there
  std::vector<std::uint32_t> ids_;
  std::vector<RemoteRegion> rows_;
  std::map<std::uint32_t, std::pair<std::string, std::string>> named_;
  std::map<std::string, std::uint32_t, std::less<>> by_name_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::string> public_;
};

}  // namespace headrace::engine
