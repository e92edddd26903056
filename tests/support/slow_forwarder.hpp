// SPDX-License-Identifier: Apache-2.0
// A network that is slow: connections to it go on to another address, and their bytes are cut into pieces,
// delayed, and sometimes stopped for a while. Loss and reordering of packets look like this to a socket.
#pragma once

#include "base/tcp_address.hpp"
#include "base/unique_fd.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <random>
#include <string>

namespace headrace::test {

struct Slowness {
  std::chrono::nanoseconds longest_delay = std::chrono::milliseconds(2);
  std::size_t most_piece_bytes = 9000;
  unsigned stalled_percent = 2;  ///< of pieces: those behind it wait, too
  std::chrono::nanoseconds stall = std::chrono::milliseconds(30);
};

/// Nothing moves but in `pass`, so one thread drives it beside what it connects.
class SlowForwarder {
 public:
  /// Null: it cannot listen on the host of the target.
  static std::unique_ptr<SlowForwarder> open(const SocketAddress& target, const Slowness& slowness,
                                             std::uint64_t seed);

  [[nodiscard]] const SocketAddress& address() const { return address_; }
  void pass();
  /// Resets all connections, with what is under way. Returns how many.
  std::size_t cut();

 private:
  struct Piece {
    std::uint64_t due_ns;
    std::string bytes;
  };
  struct Direction {
    std::deque<Piece> pieces;
    std::size_t bytes = 0;
    std::uint64_t last_due_ns = 0;
  };
  struct Connection {
    UniqueFd ends[2];   // of the one that connects, of the target
    Direction ways[2];  // from end 0, from end 1
    bool over = false;
  };

  SlowForwarder(UniqueFd listener, const SocketAddress& address, const SocketAddress& target,
                const Slowness& slowness, std::uint64_t seed)
      : listener_(std::move(listener)),
        address_(address),
        target_(target),
        slowness_(slowness),
        random_(seed) {}
  void accept_one();
  void take(Connection& connection, int from);
  void give(Connection& connection, int from);
  void cut_into_pieces(Direction& way, const std::string& bytes);

  UniqueFd listener_;
  SocketAddress address_, target_;
  Slowness slowness_;
  std::mt19937_64 random_;
  std::list<Connection> connections_;
};

}  // namespace headrace::test
