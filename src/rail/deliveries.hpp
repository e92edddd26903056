// SPDX-License-Identifier: Apache-2.0
// The messages that the peer of a link offers: each takes the next receive, in their order, and is read into
// it over all rails.
#pragma once

#include "base/errors.hpp"
#include "rail/link_message.hpp"
#include "rail/receives.hpp"
#include "rail/request.hpp"
#include "rail/sends.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace headrace::rail {

class LinkEvents;

/// Not thread-safe. Memory: what the peer has offered, at most `offer_window` messages.
class Deliveries {
 public:
  /// All outlive it.
  Deliveries(Link& link, Receives& receives, LinkEvents& events, std::uint32_t peer_nics)
      : link_(link), receives_(receives), events_(events), peer_nics_(peer_nics) {}

  ///   errors  corrupt (beyond the window; keys for another number of NICs)
  Result<void> offered(Offer offer);
  ///   errors  corrupt (beyond the window)
  Result<void> withdrawn(std::uint64_t id);
  /// Gives the next message a receive. False: there is no such message, or no receive.
  bool match_one();
  /// A read that `match_one` has begun.
  ///   errors  corrupt (the peer does not let it be read)
  Result<void> read_ended(const Request& read, Status status);
  /// Adds what the peer is to hear.
  void answer(std::deque<std::string>& outgoing);
  /// Of a receive that has been given a message. False: there is none of that token.
  bool cancel(std::uint64_t token, std::uint64_t now_ns);
  /// No rail is left, and all reads have ended.
  void lose(Status status);

  /// Messages that are not delivered.
  [[nodiscard]] std::size_t open() const;

 private:
  struct Reading {
    Receives::Posted posted;
    RemoteRegion source;
    void* source_region = nullptr;
    void* target_region = nullptr;
    headrace_side_v1 local{}, remote{};
    std::unique_ptr<Request> request;  // none: the bytes came with the offer
  };
  struct Slot {
    enum class Life : std::uint8_t { offered, reading, filled, closed } life = Life::offered;
    Offer offer;
    Done answer;
    std::unique_ptr<Reading> reading;
  };
  using Slots = std::map<std::uint64_t, Slot>;

  Result<Slot*> slot(std::uint64_t id);
  void read(std::uint64_t id, Slot& slot);
  void close(std::uint64_t id, Slot& slot, Code code, std::uint64_t room = 0);
  void deliver();
  void tell(const Reading& reading, std::uint64_t bytes, Status status);

  Link& link_;
  Receives& receives_;
  LinkEvents& events_;
  const std::uint32_t peer_nics_;
  Slots slots_;                      // the closed ones, too, until the peer knows
  std::uint64_t first_open_ = 1;     // all before it are closed
  std::uint64_t unmatched_ = 1;      // all before it have a receive, or are closed
  std::set<std::uint64_t> answers_;  // of closed ones, to be said
};

}  // namespace headrace::rail
