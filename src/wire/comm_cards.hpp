// SPDX-License-Identifier: Apache-2.0
// What the ranks of a communicator tell each other, as bytes: when they meet, split, register windows,
// compare calls, and put themselves together again.
#pragma once

#include <headrace/comm_call.hpp>
#include <headrace/result.hpp>
#include <headrace/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::wire {

// Every decode returns corrupt, with the offset, for bytes that are no such card.

/// The agent of a rank, as others reach it.
struct Seat {
  std::string agent, metadata;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<Seat> decode(std::string_view bytes);
};

/// What a rank brings to a new communicator of `host`.
struct RankCard {
  std::uint64_t mailbox = 0, lane_bytes = 0, message_lane_bytes = 0;
  std::uint32_t box = 0;  ///< its region
  bool check = false;     ///< the hint
  bool lazy = false;      ///< whether it connects to a rank at their first message
  Seat seat;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<RankCard> decode(std::string_view bytes);
};

/// What a rank gives to a split: its group, and its card in it.
struct SplitCard {
  std::vector<int> ranks;
  std::string name;
  std::string rank_card;  ///< empty: in no group

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<SplitCard> decode(std::string_view bytes);
};

/// How a step went on one rank, and the bytes that follow.
struct Outcome {
  Result<void> result;
  std::string_view rest;

  [[nodiscard]] static std::string encode(const Result<void>& result);
  [[nodiscard]] static Result<Outcome> decode(std::string_view bytes);
};

/// The memory that a rank registers in a window.
struct WindowCard {
  std::uint64_t window = 0;  ///< its number in the communicator
  std::uint64_t mailbox = 0;
  std::uint32_t elements = 0, signals = 0;  ///< regions; 0: no elements
  std::uint64_t count = 0, address = 0;     ///< of the elements
  DType dtype = DType::float32;
  bool allocated = false;  ///< ranks of the same host can map the elements
  Seat seat;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<WindowCard> decode(std::string_view bytes);
};

/// What a rank calls, as the other ranks compare it with their calls (hint `check`).
struct CallCard {
  std::string text;  ///< "all_reduce of 10 float32 with sum", for errors
  std::string must;  ///< what must be the same on all ranks; it has no counts
  std::string way;   ///< the algorithm; shown where the ranks' texts are the same
  CommOperation kind = CommOperation::barrier;
  int root = -1;
  /// Elements for each rank, and from each. One number: the same for all; none: nothing. Another rank's card
  /// may have any number of them.
  std::vector<std::uint64_t> gives, expects;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<CallCard> decode(std::string_view bytes);
};

/// What a rank leaves at the meeting place.
struct MeetingEntry {
  std::uint64_t nonce = 0, confirmed = 0;
  bool done = false;  ///< it needs nothing of the store any more
  std::string bytes;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<MeetingEntry> decode(std::string_view bytes);
};

/// The entries of all ranks, as rank 0 has put them together.
struct MeetingTable {
  std::uint64_t id = 0;
  std::vector<MeetingEntry> entries;  ///< of which nonce and bytes go on the wire

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<MeetingTable> decode(std::string_view bytes, std::size_t ranks);
};

/// A value of a key, for the store that rank 0 serves.
struct StoreEntry {
  std::string_view key, value;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<StoreEntry> decode(std::string_view bytes);
};

/// A part of a card that is mailed from agent to agent.
struct CardPiece {
  static constexpr std::size_t most_bytes = 32 << 10;         // well below what a notification takes
  static constexpr std::size_t most_card_bytes = 64UL << 20;  // of all pieces of a card
  static constexpr std::size_t most = most_card_bytes / most_bytes;

  std::uint64_t key = 0, attempt = 0;
  std::uint32_t number = 0, count = 0;
  std::string_view bytes;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<CardPiece> decode(std::string_view bytes);
};

/// What a rank brings to a new communicator of `p2p`: its GPU, and the hints that all ranks must share.
struct GpuCard {
  std::uint32_t blocks = 0, packet_bytes = 0, chunk_bytes = 0, slots = 0;  ///< 0: the default
  std::uint32_t copy_bytes = 0;                                            ///< 0: none
  std::string gpu;                                                         ///< its UUID

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<GpuCard> decode(std::string_view bytes);
};

/// The box of a rank of `p2p`, as the agents of others reach it.
struct BoxCard {
  std::uint32_t most_blocks = 0;  ///< that fit on its GPU
  std::string metadata;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<BoxCard> decode(std::string_view bytes);
};

/// What a rank of `p2p` says to all others, as a notification of its agent.
struct Saying {
  static constexpr std::size_t most_text = 48 << 10;  // longer ones are cut
  enum class Kind : std::uint8_t { aborted = 1, left = 2, tensor_offered = 3, tensor_mapped = 4, agreed = 5 };

  Kind kind = Kind::aborted;
  /// left: of the last collective that it has called; of a tensor: of its registration
  std::uint64_t number = 0;
  /// aborted: why; of a tensor: an Outcome and a TensorCard, or a TensorPlaces; agreed: an Outcome and a card
  std::string text;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<Saying> decode(std::string_view bytes);
};

/// A tensor of a rank of `p2p`, as the agents of others reach it.
struct TensorCard {
  std::uint64_t bytes = 0;  ///< 0: the rank has none, and no metadata
  std::string metadata;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<TensorCard> decode(std::string_view bytes);
};

/// The elements of a rank in a window of `p2p`.
struct ElementsCard {
  std::uint64_t count = 0;
  DType dtype = DType::float32;

  [[nodiscard]] std::string encode() const;
  ///   errors  corrupt (no such type, more elements than any memory)
  [[nodiscard]] static Result<ElementsCard> decode(std::string_view bytes);
};

/// Where a rank of `p2p` sees the tensors of all ranks; 0: nowhere.
struct TensorPlaces {
  std::vector<std::uint64_t> places;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Result<TensorPlaces> decode(std::string_view bytes, std::size_t ranks);
};

}  // namespace headrace::wire
