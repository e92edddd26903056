// SPDX-License-Identifier: Apache-2.0
// The messages that this side sends over a link: offered in their order, some at a time, until the peer has
// read them.
#pragma once

#include "base/errors.hpp"
#include "rail/link_message.hpp"
#include "rail/message.hpp"
#include "rail/nic.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace headrace::rail {

/// Offers that the peer has not answered, in one direction.
inline constexpr std::uint64_t offer_window = 64;

/// Not thread-safe. A message that has ended is put into `ended`: the link tells it.
class Sends {
 public:
  static constexpr std::size_t most_waiting = 4096;
  struct Ended {
    std::uint64_t token = 0;
    Status status;
    std::string why;
  };

  /// `nics` outlives it.
  explicit Sends(Nics& nics) : nics_(nics) {}

  ///   errors  invalid_argument (outside of its region), would_block (too many wait)
  Status post(const OutMessage& message);
  /// The memory of one that is offered comes back with `done`, soon if the peer lives.
  void cancel(std::uint64_t token, std::uint64_t now_ns);

  /// Adds what the window takes.
  void offer(std::deque<std::string>& outgoing);
  /// What was said may be lost: says it again.
  void say_again(std::deque<std::string>& outgoing) const;
  ///   errors  corrupt (it was never offered)
  Result<void> done(const Done& done);
  [[nodiscard]] bool is_canceling() const { return is_overdue(UINT64_MAX, 0); }
  /// One is canceled for longer than that.
  [[nodiscard]] bool is_overdue(std::uint64_t now_ns, std::uint64_t timeout_ns) const;
  /// No rail is left: all end.
  void lose(Status status, const std::string& why);

  [[nodiscard]] std::size_t size() const { return waiting_.size() + open_.size(); }

  std::vector<Ended> ended;

 private:
  struct Open {
    OutMessage message;
    LocalRegion lent;  // its bytes alone, as long as the peer may read them; none: they went along
    bool canceling = false;
    std::uint64_t canceled_ns = 0;
  };
  void offer_next(std::deque<std::string>& outgoing);
  [[nodiscard]] static Offer make_offer(std::uint64_t id, const Open& open);
  void end(std::map<std::uint64_t, Open>::iterator at, Status status, std::string why);

  Nics& nics_;
  std::deque<OutMessage> waiting_;  // without an id
  std::map<std::uint64_t, Open> open_;
  std::deque<std::uint64_t> to_withdraw_;
  std::uint64_t next_id_ = 1;
};

}  // namespace headrace::rail
