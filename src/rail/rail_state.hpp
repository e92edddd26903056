// SPDX-License-Identifier: Apache-2.0
// One rail of a link: its life, and what is on its way over it.
#pragma once

#include "rail/provider.hpp"
#include "transport/chunk.hpp"
#include "transport/heartbeat.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace headrace::rail {

class Request;

/// A chunk of a request.
struct Piece {
  Request* request = nullptr;
  transport::Chunk chunk;
};

/// A post that has not ended: a piece, or a message of the link.
struct Flight {
  Piece piece;
  std::string message;     ///< kept, for another rail may have to carry it
  std::uint32_t slot = 0;  ///< of the message's bytes in the NIC's pool
  std::uint64_t posted_ns = 0;
  bool is_beat = false;  ///< nobody waits for it: silence says more
};

struct Rail {
  enum class Life : std::uint8_t {
    unused,
    connecting,
    live,
    dropping,
    dropped,  ///< the peer was told
    fenced,   ///< and has told us
  };
  std::uint32_t index = 0;
  std::uint32_t nic = 0;       ///< here
  std::uint32_t peer_nic = 0;  ///< there
  Life life = Life::unused;
  std::uint32_t epoch = 0;
  PeerId peer{};
  std::string why;  ///< it died

  std::map<std::uint64_t, Flight> flights;  ///< by token, hence by age
  std::uint64_t bytes = 0;                  ///< of them
  std::size_t slots = 0;                    ///< of the NIC's pool that they hold
  bool full = false;                        ///< its NIC took no more in this pass
  std::vector<Piece> unfinished;            ///< of a rail that died: whether they were placed is unknown

  std::uint64_t next_number = 0;  ///< when it died: later ones have never used it
  std::optional<std::uint64_t>
      peers_number;            ///< the same of the peer, once it has told that the rail is down
  std::uint64_t since_ns = 0;  ///< it has this life
  std::optional<transport::Heartbeat> heartbeat;  ///< while it is live

  std::uint64_t asked_ns = 0;     ///< by `Link::ask`
  std::uint64_t progress_ns = 0;  ///< when a post ended that is no beat

  /// Since when nothing has ended, although there is a post that should; `otherwise`: there is none. Posts
  /// wait for one another: the oldest may be old, and the rail at work.
  [[nodiscard]] std::uint64_t waits_since_ns(std::uint64_t otherwise) const {
    for (const auto& [token, flight] : flights)
      if (!flight.is_beat) return std::max(flight.posted_ns, progress_ns);
    return otherwise;
  }
  [[nodiscard]] bool usable() const { return life == Life::live || life == Life::connecting; }
  [[nodiscard]] bool down() const { return life == Life::dropped || life == Life::fenced; }
};

}  // namespace headrace::rail
