// SPDX-License-Identifier: Apache-2.0
// Between nodes of several ranks a row crosses once to a node: to the rank there with the same index in its
// node, which forwards it. Behind the other parts of a window lies, in two halves each, what its rank is to
// forward (for each node a card, a flag for each chunk, and the slots), and what was forwarded to it (for
// each source flags and slots: not those of the source, so a late rank that was left out writes to no memory
// in which another one puts rows).
#pragma once

#include "moe/layout.hpp"
#include "moe/nodes.hpp"

#include <cstdint>

namespace headrace::moe {

/// Which rank of the node makes a row of it. A record has those of one rank side by side, in order of k.
struct RelayEntry {
  std::uint32_t rank;
  std::uint32_t slot;  ///< of the record that this rank gets
  Entry entry;
};

struct RelayLayout {
  WindowLayout window;
  std::uint32_t nodes = 0;  ///< 0: nothing is forwarded

  [[nodiscard]] static RelayLayout of(const Nodes& nodes, const WindowLayout& window) {
    return {window, nodes.count() > 1 && nodes.per_node > 1 ? nodes.count() : 0};
  }

  // Of a record: a RecordHead, whose entries are RelayEntry, then all that a record has from its row on.
  [[nodiscard]] static std::uint64_t entries_at() { return sizeof(RecordHead); }
  [[nodiscard]] std::uint64_t row_at() const {
    return entries_at() + round_up(window.record.top_k * sizeof(RelayEntry), 16);
  }
  /// The row, and what follows it.
  [[nodiscard]] std::uint64_t column_bytes() const { return window.record.bytes() - window.record.row_at(); }
  [[nodiscard]] std::uint64_t record_bytes() const { return row_at() + column_bytes(); }

  // Of a source on that node, of the dispatch with this epoch.
  [[nodiscard]] std::uint64_t card_at(std::uint64_t epoch, std::uint32_t node) const {
    return window.bytes() + ((epoch & 1) * nodes + node) * part_bytes();
  }
  [[nodiscard]] std::uint64_t flag_at(std::uint64_t epoch, std::uint32_t node, std::uint64_t chunk) const {
    return card_at(epoch, node) + WindowLayout::line + chunk * sizeof(std::uint64_t);
  }
  [[nodiscard]] std::uint64_t slot_at(std::uint64_t epoch, std::uint32_t node, std::uint64_t slot) const {
    return flag_at(epoch, node, 0) + flags_bytes() + slot * record_bytes();
  }
  [[nodiscard]] std::uint64_t part_bytes() const {
    if (nodes == 0) return 0;
    return round_up(WindowLayout::line + flags_bytes() + window.slots * record_bytes(), WindowLayout::line);
  }

  // What is forwarded from a source: records as the source would write them.
  [[nodiscard]] std::uint64_t forwarded_flag_at(std::uint64_t epoch, std::uint32_t source,
                                                std::uint64_t chunk) const {
    return forwarded_at() + ((epoch & 1) * window.ranks + source) * forwarded_part_bytes() +
           chunk * sizeof(std::uint64_t);
  }
  [[nodiscard]] std::uint64_t forwarded_slot_at(std::uint64_t epoch, std::uint32_t source,
                                                std::uint64_t slot) const {
    return forwarded_flag_at(epoch, source, 0) + flags_bytes() + slot * window.record.bytes();
  }

  /// Of the whole window.
  [[nodiscard]] std::uint64_t bytes() const {
    return nodes == 0 ? window.bytes() : forwarded_at() + 2 * window.ranks * forwarded_part_bytes();
  }

 private:
  [[nodiscard]] std::uint64_t forwarded_at() const { return window.bytes() + 2 * nodes * part_bytes(); }
  [[nodiscard]] std::uint64_t forwarded_part_bytes() const {
    return round_up(flags_bytes() + window.slots * window.record.bytes(), WindowLayout::line);
  }
  [[nodiscard]] std::uint64_t flags_bytes() const {
    return round_up(chunks_of(window.slots) * sizeof(std::uint64_t), WindowLayout::line);
  }
};

}  // namespace headrace::moe
