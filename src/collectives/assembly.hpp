// SPDX-License-Identifier: Apache-2.0
// How ranks that know each other's agents put a communicator together: each mails its card to all others.
// There is no meeting place, so it works when rank 0, which listened there, is gone.
#pragma once

#include "base/clock.hpp"
#include "base/interrupt.hpp"
#include "wire/comm_cards.hpp"

#include <headrace/result.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::collectives {

class Station;

using wire::Seat;

/// A card as it came. Its rank takes another number for each attempt.
struct MailedCard {
  std::uint64_t attempt = 0;
  std::string bytes;

  bool operator==(const MailedCard&) const = default;
};

/// Cards that other agents have mailed and that this one has not asked for yet. The oldest go if they are too
/// many.
class AssemblyMail {
 public:
  /// Takes one piece of mail. Called on the agent's callback thread.
  void put(const std::string& from, std::string_view mail);
  /// The last whole card of an agent for this assembly.
  [[nodiscard]] std::optional<MailedCard> card(std::uint64_t key, const std::string& from) const;
  void forget(std::uint64_t key);
  /// How many pieces have come.
  [[nodiscard]] std::uint64_t count() const;
  /// Sleeps until more than `count` pieces have come, a while at most.
  void wait(std::uint64_t count, Deadline deadline) const;

  /// The pieces in which a card is mailed. `attempt` differs each time.
  [[nodiscard]] static std::vector<std::string> pieces(std::uint64_t key, std::uint64_t attempt,
                                                       std::string_view card);

 private:
  struct Card {
    std::uint64_t key = 0, attempt = 0;
    std::string from;
    std::size_t missing = 0;
    std::vector<std::optional<std::string>> pieces;
    std::size_t bytes = 0;
  };
  Card* of(std::uint64_t key, const std::string& from);
  void make_room();

  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  std::deque<Card> cards_;  // oldest first
  std::size_t bytes_ = 0;
  std::uint64_t count_ = 0;
};

/// Mails `card` to every other seat, and returns the cards of all in the order of the seats. An earlier
/// attempt may have failed on some ranks, and its cards may still be under way: a card counts once its rank
/// has answered that it has the card of this attempt.
///   key     the same on all ranks, another one for each communicator
///   errors  timed_out (which ranks have not come), peer_lost (which rank), canceled (interrupted), and those
///           of Agent::connect
[[nodiscard]] Result<std::vector<std::string>> exchange_cards(Station& station, std::uint64_t key,
                                                              std::span<const Seat> seats, std::size_t mine,
                                                              const std::string& card, Deadline deadline,
                                                              Interrupt interrupt);

}  // namespace headrace::collectives
