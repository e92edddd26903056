// SPDX-License-Identifier: Apache-2.0
// What ranks of different nodes tell one another, besides the bytes of rows: 63 bits, which travel as an
// immediate of a fabric, after the bytes that they speak of.
#pragma once

#include "moe/layout.hpp"

#include <headrace/request.hpp>

#include <cstdint>

namespace headrace::moe {

struct Signal {
  enum class Kind : std::uint8_t {
    card,            ///< of the dispatch with this epoch. Payload: Chunks
    records,         ///< as card
    relay_card,      ///< of the dispatch with this epoch. Payload: RelayCount
    relay_records,   ///< as records, for the ranks of the receiver's node
    partials,        ///< of the combine with this epoch. Payload: Chunks
    missing,         ///< as partials: they never come
    dispatch_taken,  ///< payload: Chunks
    combine_taken,   ///< payload: Chunks
    list,            ///< of agents. Payload: its number
    left_out,        ///< the sender leaves the receiver out. Payload: OfGroup
    vote,            ///< for a rank of the node that has the votes. Payload: OfGroup, a Vote
    answer,          ///< as vote
    votes_low,       ///< payload: OfGroup, ranks 0 to 31 that are out
    votes_high,      ///< payload: OfGroup, ranks 32 to 63 that are out
    probe,           ///< answered with the votes, if there are any
    end,
  };
  static constexpr std::uint32_t kind_bits = 4, rank_bits = 6, payload_bits = 53;

  Kind kind = Kind::probe;
  std::uint32_t rank = 0;  ///< the sender
  std::uint64_t payload = 0;

  [[nodiscard]] Immediate packed() const {
    const std::uint64_t bits = static_cast<std::uint64_t>(kind) | std::uint64_t{rank} << kind_bits |
                               payload << (kind_bits + rank_bits);
    return {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
  }
  [[nodiscard]] static Signal of(Immediate immediate) {
    const std::uint64_t bits = std::uint64_t{immediate.scope} << 32 | immediate.value;
    return {static_cast<Kind>(bits & ((1U << kind_bits) - 1)),
            static_cast<std::uint32_t>(bits >> kind_bits) & ((1U << rank_bits) - 1),
            bits >> (kind_bits + rank_bits)};
  }
};

/// Chunks of an operation. Of its epoch the low bits travel.
struct Chunks {
  static constexpr std::uint32_t epoch_bits = 24, first_bits = 17, count_bits = 12;

  std::uint64_t epoch = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;

  [[nodiscard]] std::uint64_t payload() const {
    return (epoch & ((1U << epoch_bits) - 1)) | first << epoch_bits | count << (epoch_bits + first_bits);
  }
  ///   near  the epoch is at most 2^23 operations from this one
  [[nodiscard]] static Chunks of(std::uint64_t payload, std::uint64_t near) {
    constexpr std::uint64_t all = std::uint64_t{1} << epoch_bits;
    const std::uint64_t ahead = (payload - near) & (all - 1);
    return {ahead < all / 2 ? near + ahead : near + ahead - all,
            payload >> epoch_bits & ((1U << first_bits) - 1), payload >> (epoch_bits + first_bits)};
  }
};
static_assert(Chunks::epoch_bits + Chunks::first_bits + Chunks::count_bits == Signal::payload_bits);

/// Records that come to be forwarded, as the first and the count of Chunks.
struct RelayCount {
  [[nodiscard]] static std::uint64_t payload(std::uint64_t epoch, std::uint64_t records) {
    return Chunks{epoch, records & ((1U << Chunks::first_bits) - 1), records >> Chunks::first_bits}.payload();
  }
  [[nodiscard]] static std::uint64_t records_of(const Chunks& chunks) {
    return chunks.first | chunks.count << Chunks::first_bits;
  }
};

/// What holds in one group alone: since ranks regrouped, until they regroup again.
struct OfGroup {
  static constexpr std::uint32_t bits_bits = 32, group_bits = Signal::payload_bits - bits_bits;

  std::uint64_t group = 0;  ///< its low bits travel
  std::uint32_t bits = 0;

  [[nodiscard]] std::uint64_t payload() const {
    return bits | (group & ((std::uint64_t{1} << group_bits) - 1)) << bits_bits;
  }
  [[nodiscard]] static std::uint32_t bits_of(std::uint64_t payload) {
    return static_cast<std::uint32_t>(payload);
  }
  [[nodiscard]] static bool is_of(std::uint64_t payload, std::uint64_t group) {
    return OfGroup{group, bits_of(payload)}.payload() == payload;
  }
};

/// What ranks tell one another while they regroup, as a message of a fabric, in the order in which it was
/// told. The words of that name in PeerWords.
struct Meeting {
  std::uint64_t asks = 0, answers = 0;
  std::uint64_t dispatches = 0, combines = 0;
};
struct MeetingMessage {
  std::uint64_t rank = 0;  ///< the sender
  Meeting meeting;
};

/// A vote against a rank, and its answer.
struct Vote {
  std::uint32_t number = 0;  ///< 16 bits: the voter counts its votes
  std::uint32_t against = 0;
  bool counted = false;  ///< of an answer; false: the voter is out itself

  [[nodiscard]] std::uint32_t bits() const {
    return (number & 0xffff) | against << 16 | std::uint32_t{counted} << 22;
  }
  [[nodiscard]] static Vote of(std::uint32_t bits) {
    return {bits & 0xffff, bits >> 16 & 63, (bits >> 22 & 1) != 0};
  }
};

}  // namespace headrace::moe
