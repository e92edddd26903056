// SPDX-License-Identifier: Apache-2.0
// What two instances of cuda_ipc tell each other beside what every link of a host says
// (host_link/control_messages.hpp): which memory one wants to reach, and how it is reached.
//
// README.md has the layouts. Everything that is read has a bound.
#pragma once

#include "gpu/peer_memory.hpp"
#include "host_link/control_messages.hpp"

#include <headrace/result.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace headrace::cuda_ipc {

inline constexpr host_link::Protocol protocol{.backend = "cuda_ipc",
                                              .control_magic = 0x4d435248,  // "HRCM"
                                              .info_magic = 0x49435248,     // "HRCI"
                                              .version = 2,
                                              .greeting_bytes = 0};

inline constexpr std::size_t max_pieces_in_message = 16;  ///< as many as a packet takes descriptors
inline constexpr std::uint32_t max_pieces = 1 << 20;      ///< of one region: 2 TiB of the smallest there are
inline constexpr std::size_t max_uuid_bytes = 64;
inline constexpr std::size_t max_refused_bytes = 1024;

/// One GPU of the sender's wants to reach a region of the receiver's.
struct Want {
  std::uint32_t region_id = 0;
  std::uint32_t device = 0;  ///< the sender's ordinal, which comes back with the answer
};

/// How that region is reached, in answer to Want.
struct Offer {
  std::uint32_t region_id = 0;
  std::uint32_t device = 0;
  std::uint64_t allocation = 0;  ///< the same number: the same memory, for as long as the owner lives
  std::uint64_t address = 0;     ///< in the owner's process, for a peer that lives there too
  std::uint64_t offset = 0;      ///< of the region within the allocation, or within the first piece
  std::uint64_t bytes = 0;
  std::string
      uuid;  ///< of the owner's GPU; empty: the host's memory, of which the one piece is a memory file
  std::uint32_t pieces = 0;        ///< that follow as Pieces; 0: by the handle
  cuda::IpcMemoryHandle handle{};  ///< if there are no pieces
  // Where handles of this GPU of the owner's lead, and what is found there.
  cuda::IpcMemoryHandle proof{};
  std::uint64_t nonce = 0;

  [[nodiscard]] bool is_host_memory() const { return uuid.empty(); }
};

/// The next pieces of the region that was offered last in pieces, a descriptor each.
struct Pieces {
  std::vector<std::uint64_t> bytes;
};

/// The region is not reached at all, in answer to Want.
struct Refused {
  std::uint32_t region_id = 0;
  std::uint32_t device = 0;
  Code code = Code::not_found;
  std::string text;
};

/// The region has been deregistered: let go of its memory.
struct Gone {
  std::uint32_t region_id = 0;
};

/// The region is the host's memory, merely registered: its owner copies to and from the asker's memory. In
/// answer to Want. The descriptor that comes along is that of the link's end words (end_words.hpp).
struct ByOwner {
  std::uint32_t region_id = 0;
  std::uint32_t device = 0;
};

/// A request that the receiver is to carry out, in a memory file (move_file.hpp) whose descriptor comes
/// along.
struct Move {
  std::uint32_t number = 0;    ///< the sender's; never used twice on a link
  std::uint32_t end_word = 0;  ///< where a GPU of the receiver's says that a post has ended
};

/// The file of that request asks for a post.
struct Go {
  std::uint32_t number = 0;
};

/// That request is no more.
struct Drop {
  std::uint32_t number = 0;
};

using Message = std::variant<Want, Offer, Pieces, Refused, Gone, ByOwner, Move, Go, Drop>;

[[nodiscard]] host_link::Other encode(const Message& message);
/// `descriptors`: how many came with the packet.
///   errors   corrupt (with what is wrong)
[[nodiscard]] Result<Message> decode(const host_link::Other& message, std::size_t descriptors);

}  // namespace headrace::cuda_ipc
