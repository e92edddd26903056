// SPDX-License-Identifier: Apache-2.0
// What kernels and host code share: where things lie in a box, how operations and chunks are numbered, and
// the argument of the kernels.
#pragma once

#include <headrace/plugin/kernels/collectives_v1.h>

#include <stdint.h>

#if defined(__CUDACC__)
#define HEADRACE_BOTH_SIDES __host__ __device__ __forceinline__
#else
#define HEADRACE_BOTH_SIDES inline
#endif

namespace headrace::kernels::collectives {

inline constexpr unsigned most_ranks = HEADRACE_COLLECTIVES_MOST_RANKS;

// Threads of a block: the fewest for packets in one step and in two, the most of both, the
// most for dense packets, whose words need twice the registers, and those for chunks.
inline constexpr unsigned packed_threads = 256, two_step_threads = 128, most_packed_threads = 512;
inline constexpr unsigned most_dense_threads = 256;
inline constexpr unsigned chunk_threads = 512;

/// Eight bytes of a part, with the number of the operation that they belong to. It is read and written as
/// one.
struct alignas(16) Packet {
  uint64_t data;
  uint64_t epoch;
};
inline constexpr unsigned packet_bytes = sizeof(Packet::data);
/// What a thread sends as four dense packets, each 12 bytes and a part of the number.
inline constexpr unsigned dense_bytes = 48;

/// Where a rank that has begun an operation has its part for another rank, as that one sees it: the part that
/// it sends, and the place of the part that it receives. Both have bit 0 set, or are 0: it can give no
/// places.
struct Places {
  Packet sends, receives;
};

/// At the beginning of a box.
struct Header {
  /// The box's rank adds `arrivals` in each operation, all of its blocks together: each of them sees the same
  /// number of ended operations, however early the others end.
  uint64_t arrived;
  uint64_t failed;  ///< not 0: a launch of this rank has ended early, and later ones end at once
  /// The last operation that each rank has begun; so it has ended those before. A launch that finds its own
  /// number at its own rank has begun beside another launch.
  uint64_t begun[most_ranks];
  Places places[2][most_ranks];  ///< of each rank; operations take the two rows in turn

  static constexpr unsigned failed_at = 8, begun_at = 16, places_at = 144;
};
inline constexpr uint64_t arrivals = uint64_t{1} << 16;

/// A chunk that has come, or has been taken: the operation's number and, from 1, the chunk's.
HEADRACE_BOTH_SIDES uint64_t chunk_key(uint64_t epoch, uint64_t chunk) { return epoch << 24 | (chunk + 1); }
inline constexpr uint64_t most_chunks = (uint64_t{1} << 24) - 1;  // of one part

/// Two ways on which chunks of one operation go.
enum class Way : unsigned { parts, results };

/// A box: the header, a word for each chunk that has come, is free or was sent, packets, and chunks. Packets
/// have two halves: operations take them in turn. All places are offsets in the box, which has less than 4
/// GiB.
struct Shape {
  uint32_t ranks;
  uint32_t packets;      ///< the longest part that travels as packets has so many
  uint32_t chunk_bytes;  ///< of a slot
  uint32_t slots;        ///< of each rank

  /// Written by rank `from`: the last chunk that it has put into its slot of this box.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t came(Way way, unsigned from, unsigned slot) const {
    return word(0, way, from, slot);
  }
  /// Written by rank `by`: the last chunk of this box's rank that it has taken out of that slot of its box.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t taken(Way way, unsigned by, unsigned slot) const {
    return word(1, way, by, slot);
  }
  /// Written by the box's rank: the last chunk that it has put into its slot of the box of rank `to`.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t sent(Way way, unsigned to, unsigned slot) const {
    return word(2, way, to, slot);
  }
  /// Written by rank `from`: the packets of its part, in the first half.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t packets_of(unsigned from) const {
    return first_packet() + from * bytes_of_packets();
  }
  /// Of one rank; a half has those of all ranks.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t bytes_of_packets() const { return packets * sizeof(Packet); }
  /// Where the results of an all_reduce in two steps begin among the packets of one rank, behind its parts.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t results_at() const { return packets / 2 * sizeof(Packet); }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t chunk(Way way, unsigned from, unsigned slot) const {
    return first_packet() + 2 * ranks * bytes_of_packets() +
           ((static_cast<unsigned>(way) * ranks + from) * slots + slot) * chunk_bytes;
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t bytes() const {
    const uint64_t of_words = uint64_t{6} * ranks * slots * sizeof(uint64_t);
    return words + (of_words + line - 1) / line * line + uint64_t{2} * ranks * packets * sizeof(Packet) +
           uint64_t{2} * ranks * slots * chunk_bytes;
  }

 private:
  static constexpr uint32_t line = 128;
  static constexpr uint32_t words = (sizeof(Header) + line - 1) / line * line;  // where they begin

  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t word(unsigned kind, Way way, unsigned rank,
                                                  unsigned slot) const {
    return words + (((kind * 2 + static_cast<unsigned>(way)) * ranks + rank) * slots + slot) *
                       static_cast<unsigned>(sizeof(uint64_t));
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t first_packet() const {
    const uint32_t of_words = 6 * ranks * slots * static_cast<unsigned>(sizeof(uint64_t));
    return words + (of_words + line - 1) / line * line;
  }
};

struct Part {
  uint64_t address;
  uint64_t bytes;
};

/// How elements of several ranks become one.
struct Reduction {
  int32_t dtype;
  int32_t kind;
  double factor;    ///< of each element
  double divisor;   ///< of the result
  float scale = 1;  ///< its reciprocal
};

/// The argument of the kernels of this folder: one operation on one rank.
///
/// The rank sends a part to each rank and receives one from each. What it receives either goes to `receives`,
/// or is reduced to `result`. If it `shares`, it sends the result to all ranks, and what they send goes to
/// `receives`. What every thread reads comes first: a GPU fetches arguments by the line.
struct Launch {
  Shape shape;
  uint32_t rank;
  uint32_t blocks;
  uint32_t shares;
  uint32_t is_barrier;  ///< each rank then sees what all ranks wrote before
  uint32_t one_source;  ///< all parts that it sends are the same
  uint32_t is_simple;   ///< all parts of this rank are whole units at multiples of their length, and `scale`
                        ///< is exact
  uint32_t packets_at;  ///< where the packets of rank 0 begin in a box
  Part own;             ///< the part that it sends to itself
  Part result;
  Reduction reduction;
  uint64_t longest_sent, longest_received;  ///< bytes of the longest part
  uint64_t boxes[most_ranks];
  Part sends[most_ranks];
  Part receives[most_ranks];
  uint64_t failed_box;  ///< this rank's box of operations: its `failed` counts for all launches
  uint64_t abort;
  uint64_t status;
  uint64_t timeout_ns;   ///< 0: none
  uint32_t chunk_bytes;  ///< of this operation: at most those of a slot
  uint32_t chunks;       ///< of the longest part
  uint32_t block_slots;  ///< slots of one block, a power of two
  uint32_t is_message;   ///< the ranks are the two of a channel
  uint32_t numbers[2];   ///< of the two ranks of a channel in their communicator
  /// As `Places` has them, for each rank. 0: not all parts of this rank can go without a copy.
  uint64_t send_at[most_ranks], receive_at[most_ranks];

  /// A rank as a status names it.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t number_of(unsigned of_rank) const {
    return is_message != 0 ? numbers[of_rank] : of_rank;
  }
  /// A reason as a status names it.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint64_t named(uint64_t reason) const {
    if (is_message == 0) return reason;
    return reason | (rank == 0 ? HEADRACE_COLLECTIVES_IN_SEND : HEADRACE_COLLECTIVES_IN_RECV);
  }
  /// Chunks of one block.
  [[nodiscard]] HEADRACE_BOTH_SIDES uint32_t chunks_of(unsigned block) const {
    return chunks > block ? (chunks - block + blocks - 1) / blocks : 0;
  }
};

/// What a round of a block has of each part: its slot, its number, and where it lies.
struct Chunk {
  uint32_t slot = 0;
  uint32_t most_bytes = 0;
  uint32_t number = 0;
  uint64_t begin = 0;

  /// The chunk of `back` rounds before, of a block that has `count`. Before the first chunk and behind the
  /// last one it is empty.
  HEADRACE_BOTH_SIDES static Chunk of(const Launch& args, unsigned block, uint32_t count, uint32_t round,
                                      unsigned back) {
    const uint32_t turn = round - back;  // very large before the first chunk
    if (turn >= count) return {};
    const uint32_t number = block + turn * args.blocks;
    return {block * args.block_slots + (turn & (args.block_slots - 1)), args.chunk_bytes, number,
            static_cast<uint64_t>(number) * args.chunk_bytes};
  }
  /// Its bytes; none behind the part's end.
  [[nodiscard]] HEADRACE_BOTH_SIDES unsigned bytes_of(const Part& part) const {
    if (begin >= part.bytes) return 0;
    const uint64_t left = part.bytes - begin;
    return left < most_bytes ? static_cast<unsigned>(left) : most_bytes;
  }
};

}  // namespace headrace::kernels::collectives
