// SPDX-License-Identifier: Apache-2.0
// Where things lie in a window and in a record. The same on all ranks, on CPUs and on GPUs
// (docs/decisions/0017-moe.md).
#pragma once

#include "moe/both_sides.hpp"

#include <stdint.h>

namespace headrace::moe {

/// A flag says that so many slots have come.
inline constexpr uint32_t chunk_slots = 16;

HEADRACE_BOTH_SIDES uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
HEADRACE_BOTH_SIDES uint64_t chunk_of(uint64_t slot) { return slot / chunk_slots; }
HEADRACE_BOTH_SIDES uint64_t chunks_of(uint64_t slots) { return (slots + chunk_slots - 1) / chunk_slots; }

/// At the beginning of a record.
struct RecordHead {
  uint32_t token;    ///< among the tokens of its source's group
  uint32_t entries;  ///< that follow, 1 to top_k
  uint32_t unused[2];
};

/// A row that the target makes of the record.
struct Entry {
  uint32_t expert;  ///< among those of the target
  uint32_t order;   ///< entries of this source for this expert before it
  float weight;     ///< 1 if the caller gave none
};

inline constexpr uint32_t most_payloads = 8;

struct RecordLayout {
  uint32_t top_k;
  uint64_t row_bytes;
  uint64_t scale_bytes;
  uint64_t payload_bytes[most_payloads] = {};  ///< of further columns; 0: no such column

  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t entries_at() const { return sizeof(RecordHead); }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t row_at() const {
    return entries_at() + round_up(top_k * sizeof(Entry), 16);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t scales_at() const { return row_at() + row_bytes; }
  /// Of the column with this number; most_payloads: the end of the last one.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t payload_at(uint32_t number) const {
    uint64_t at = scales_at() + round_up(scale_bytes, 16);
    for (uint32_t i = 0; i < number; ++i) at += round_up(payload_bytes[i], 16);
    return at;
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t bytes() const { return payload_at(most_payloads); }
};

/// What a source tells a target before its records. The counts follow: entries for each expert of the target.
struct CardHead {
  uint64_t epoch;    ///< stored last
  uint64_t records;  ///< that come
};
/// In CardHead::records: they come through the rank of the target's node that forwards (relay_layout.hpp).
inline constexpr uint64_t forwarded_bit = uint64_t{1} << 63;

/// What another rank tells the rank of a window.
struct PeerWords {
  uint64_t dispatch_taken;  ///< the last dispatch of the window's rank that it has taken
  uint64_t combine_taken;   ///< the same of combines
  uint64_t left_out;        ///< not 0: it leaves the window's rank out
  uint64_t agents;          ///< the number of the list of agents that it was given; 0: none yet
  // While ranks regroup:
  uint64_t asks;        ///< a number that it has made for this regrouping
  uint64_t answers;     ///< the number with which the window's rank asks, as it has seen it
  uint64_t dispatches;  ///< that it has begun
  uint64_t combines;
  uint64_t ready;      ///< GPUs: it has mapped all windows, and has taken all memory for its launches
  uint64_t unused[7];  ///< each rank writes to lines of its own
};

struct WindowLayout {
  uint32_t ranks;
  uint32_t group_size;
  uint32_t slots;    ///< of one source: the longest part of a group's tokens, a multiple of chunk_slots
  uint32_t experts;  ///< the most that a rank has
  RecordLayout record;
  uint64_t partial_bytes;

  static constexpr uint64_t page = 4096;
  static constexpr uint64_t line = 128;
  static constexpr uint64_t bell_at = 0;
  static constexpr uint64_t voted_out_at = 64;  ///< in the window of the lowest rank: a bit for each rank
  static constexpr uint64_t refused_at = 72;    ///< not 0: the window's rank could not join, for this reason
  static constexpr uint64_t config_at = line;   ///< its text, which ends with a zero
  static constexpr uint64_t reason_bytes = 768;
  static constexpr uint64_t reason_at = page - reason_bytes;  ///< as config_at
  static constexpr uint64_t config_bytes = reason_at - config_at;

  /// Written by rank `by`.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t words_at(uint32_t by) const {
    return page + by * sizeof(PeerWords);
  }

  // What a source writes, of the dispatch with this epoch.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t card_at(uint64_t epoch, uint32_t source) const {
    return dispatch_part_at(epoch, source);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t counts_at(uint64_t epoch, uint32_t source) const {
    return card_at(epoch, source) + sizeof(CardHead);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t chunk_flag_at(uint64_t epoch, uint32_t source,
                                                           uint64_t chunk) const {
    return card_at(epoch, source) + card_bytes() + chunk * sizeof(uint64_t);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t slot_at(uint64_t epoch, uint32_t source, uint64_t slot) const {
    return card_at(epoch, source) + card_bytes() + flags_bytes(slots) + slot * record.bytes();
  }

  // What a target writes, of the combine with this epoch. Slots of all members of the group: see group_slot.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t partial_flag_at(uint64_t epoch, uint32_t target,
                                                             uint64_t chunk) const {
    return combine_part_at(epoch, target) + chunk * sizeof(uint64_t);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t partial_at(uint64_t epoch, uint32_t target,
                                                        uint64_t slot) const {
    return combine_part_at(epoch, target) + flags_bytes(group_slots()) + slot * partial_bytes;
  }

  /// Where the partial of a slot of this member of a group lies in the windows of all its members.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t group_slot(uint32_t member, uint64_t slot) const {
    return uint64_t{member} * slots + slot;
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t group_slots() const { return uint64_t{group_size} * slots; }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t bytes() const {
    return combine_at() + 2 * ranks * combine_part_bytes();
  }
  /// Of one source: from its card to the end of its slots.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t dispatch_part_bytes() const {
    return round_up(card_bytes() + flags_bytes(slots) + slots * record.bytes(), line);
  }
  /// Of one target: from its first flag to the end of its partials.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t combine_part_bytes() const {
    return round_up(flags_bytes(group_slots()) + group_slots() * partial_bytes, line);
  }

 private:
  [[nodiscard]] static HEADRACE_BOTH_SIDES uint64_t flags_bytes(uint64_t of_slots) {
    return round_up(chunks_of(of_slots) * sizeof(uint64_t), line);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t card_bytes() const {
    return round_up(sizeof(CardHead) + experts * sizeof(uint32_t), line);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t dispatch_at() const { return round_up(words_at(ranks), page); }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t combine_at() const {
    return round_up(dispatch_at() + 2 * ranks * dispatch_part_bytes(), page);
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t dispatch_part_at(uint64_t epoch, uint32_t source) const {
    return dispatch_at() + ((epoch & 1) * ranks + source) * dispatch_part_bytes();
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t combine_part_at(uint64_t epoch, uint32_t target) const {
    return combine_at() + ((epoch & 1) * ranks + target) * combine_part_bytes();
  }
};

/// The tokens that one member of a group sends, of those that all its members hold.
struct TokenRange {
  uint64_t begin, end;
};
HEADRACE_BOTH_SIDES uint64_t tokens_of_part(uint64_t tokens, uint32_t group_size) {
  return round_up((tokens + group_size - 1) / group_size, chunk_slots);
}
HEADRACE_BOTH_SIDES TokenRange tokens_of_member(uint64_t tokens, uint32_t group_size, uint32_t member) {
  const uint64_t part = tokens_of_part(tokens, group_size);
  const uint64_t begin = member * part < tokens ? member * part : tokens;
  const uint64_t end = begin + part < tokens ? begin + part : tokens;
  return {begin, end};
}

/// The member that sends a token.
HEADRACE_BOTH_SIDES uint32_t member_of_token(uint64_t tokens, uint32_t group_size, uint64_t token) {
  return group_size == 1 ? 0 : static_cast<uint32_t>(token / tokens_of_part(tokens, group_size));
}

}  // namespace headrace::moe
