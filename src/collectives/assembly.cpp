// SPDX-License-Identifier: Apache-2.0
#include "collectives/assembly.hpp"

#include "base/errors.hpp"
#include "base/random.hpp"
#include "collectives/station.hpp"
#include "collectives/work_state.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace headrace::collectives {
namespace {

constexpr auto card_interval = std::chrono::milliseconds(20);

std::string rank_text(std::size_t rank, const Seat& seat) {
  return fmt::format("rank {} (agent {})", rank, seat.agent);
}

/// One assembly of one rank.
class Assembly {
 public:
  Assembly(Station& station, std::uint64_t key, std::span<const Seat> seats, std::size_t mine,
           Deadline deadline, Interrupt interrupt)
      : station_(station),
        key_(key),
        seats_(seats),
        mine_(mine),
        deadline_(deadline),
        interrupt_(interrupt) {}

  Result<void> reach(std::size_t rank) {
    const Seat& seat = seats_[rank];
    HEADRACE_TRY_VOID(station_.agent().import_metadata(seat.metadata));
    return station_.agent().connect(seat.agent, time_left(deadline_));
  }

  Result<void> mail_to(std::size_t rank, const std::vector<std::string>& pieces) {
    for (const std::string& piece : pieces) {
      auto sent = station_.agent().notify(seats_[rank].agent, Station::mail_of_assemblies(piece));
      while (!sent && sent.code() == Code::would_block) {
        HEADRACE_TRY_VOID(go_on());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        sent = station_.agent().notify(seats_[rank].agent, Station::mail_of_assemblies(piece));
      }
      if (!sent) return sent;
    }
    return {};
  }

  /// Another attempt has other cards: ranks that have not called yet are not to take this one's. An empty
  /// card takes its place.
  void withdraw() {
    for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
      if (rank == mine_) continue;
      for (const std::string& piece : AssemblyMail::pieces(key_, random_u64(), {}))
        static_cast<void>(station_.agent().notify(seats_[rank].agent, Station::mail_of_assemblies(piece)));
    }
  }

  Result<std::string> card_of(std::size_t rank) {
    while (true) {
      if (auto card = came(rank)) return std::move(*card);
      HEADRACE_TRY_VOID(go_on());
      if (lost(rank)) return make_error(Code::peer_lost, "it is gone");
      station_.assembly_mail().wait(Deadline::earliest(deadline_, Deadline::after(card_interval)));
    }
  }

  /// The ranks whose cards have not come. One that has withdrawn its card was there, and waited for the
  /// others.
  [[nodiscard]] std::string missing() const {
    const auto without = [this](const auto& is_there) {
      std::string list;
      for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
        if (rank == mine_ || is_there(rank)) continue;
        list.append(list.empty() ? "" : ", ").append(std::to_string(rank));
      }
      return list;
    };
    std::string never = without([this](std::size_t rank) {
      return station_.assembly_mail().card(key_, seats_[rank].agent).has_value();
    });
    return never.empty() ? without([this](std::size_t rank) { return came(rank).has_value(); }) : never;
  }

 private:
  /// The card of a rank, unless it has withdrawn it.
  [[nodiscard]] std::optional<std::string> came(std::size_t rank) const {
    auto card = station_.assembly_mail().card(key_, seats_[rank].agent);
    if (card && card->empty()) card.reset();
    return card;
  }
  Result<void> go_on() {
    if (interrupt_.asked()) return Interrupt::error();
    if (deadline_.expired())
      return make_error(Code::timed_out, "waits for ranks that have not come: {}", missing());
    return {};
  }

  bool lost(std::size_t rank) {
    const std::vector<PeerInfo> peers = station_.agent().peers();
    const auto found = std::ranges::find(peers, seats_[rank].agent, &PeerInfo::name);
    return found == peers.end() || found->lost;
  }

  Station& station_;
  const std::uint64_t key_;
  const std::span<const Seat> seats_;
  const std::size_t mine_;
  const Deadline deadline_;
  Interrupt interrupt_;
};

}  // namespace

std::vector<std::string> AssemblyMail::pieces(std::uint64_t key, std::uint64_t attempt,
                                              std::string_view card) {
  constexpr std::size_t most = wire::CardPiece::most_bytes;
  const std::size_t count = std::max<std::size_t>(1, (card.size() + most - 1) / most);
  std::vector<std::string> all;
  for (std::size_t number = 0; number < count; ++number) {
    const wire::CardPiece piece{key, attempt, static_cast<std::uint32_t>(number),
                                static_cast<std::uint32_t>(count), card.substr(number * most, most)};
    all.push_back(piece.encode());
  }
  return all;
}

AssemblyMail::Card* AssemblyMail::of(std::uint64_t key, const std::string& from) {
  const auto found =
      std::ranges::find_if(cards_, [&](const Card& card) { return card.key == key && card.from == from; });
  return found == cards_.end() ? nullptr : &*found;
}

void AssemblyMail::put(const std::string& from, std::string_view mail) {
  const auto piece = wire::CardPiece::decode(mail);
  if (!piece) return;  // not from one of us
  const std::scoped_lock lock(mutex_);
  Card* card = of(piece->key, from);
  if (card == nullptr) card = &cards_.emplace_back(Card{piece->key, 0, from, 0, {}, 0});
  if (card->attempt != piece->attempt || card->pieces.size() != piece->count) {  // a new one
    bytes_ -= card->bytes;
    *card = Card{piece->key, piece->attempt, from, piece->count, {}, piece->count * sizeof(card->pieces[0])};
    card->pieces.resize(piece->count);
    bytes_ += card->bytes;
  }
  auto& place = card->pieces[piece->number];
  if (place) return;
  place.emplace(piece->bytes);
  card->bytes += piece->bytes.size();
  bytes_ += piece->bytes.size();
  --card->missing;
  make_room();
  came_.notify_all();
}

void AssemblyMail::make_room() {
  constexpr std::size_t most_cards = 8192;
  while (cards_.size() > 1 && (bytes_ > wire::CardPiece::most_card_bytes || cards_.size() > most_cards)) {
    bytes_ -= cards_.front().bytes;
    cards_.pop_front();
  }
}

std::optional<std::string> AssemblyMail::card(std::uint64_t key, const std::string& from) const {
  const std::scoped_lock lock(mutex_);
  const auto found =
      std::ranges::find_if(cards_, [&](const Card& card) { return card.key == key && card.from == from; });
  if (found == cards_.end() || found->missing != 0) return std::nullopt;
  std::string whole;
  for (const auto& piece : found->pieces) whole.append(*piece);
  return whole;
}

void AssemblyMail::forget(std::uint64_t key) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(cards_, [&](const Card& card) {
    if (card.key != key) return false;
    bytes_ -= card.bytes;
    return true;
  });
}

void AssemblyMail::wait(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  came_.wait_for(lock, std::chrono::nanoseconds(deadline.remaining_ns()));
}

Result<std::vector<std::string>> exchange_cards(Station& station, std::uint64_t key,
                                                std::span<const Seat> seats, std::size_t mine,
                                                const std::string& card, Deadline deadline,
                                                Interrupt interrupt) {
  Assembly assembly(station, key, seats, mine, deadline, interrupt);
  const auto pieces = AssemblyMail::pieces(key, random_u64(), card);
  const auto all_others = [&](const auto& step) -> Result<void> {
    for (std::size_t i = 1; i < seats.size(); ++i) {
      const std::size_t rank = (mine + i) % seats.size();
      if (Result<void> done = step(rank); !done)
        return std::move(done).error().within(rank_text(rank, seats[rank]));
    }
    return {};
  };
  std::vector<std::string> cards(seats.size());
  cards[mine] = card;
  const auto exchange = [&]() -> Result<void> {
    HEADRACE_TRY_VOID(all_others([&](std::size_t rank) { return assembly.reach(rank); }));
    HEADRACE_TRY_VOID(all_others([&](std::size_t rank) { return assembly.mail_to(rank, pieces); }));
    return all_others([&](std::size_t rank) -> Result<void> {
      HEADRACE_TRY(theirs, assembly.card_of(rank));
      cards[rank] = std::move(theirs);
      return {};
    });
  };
  const Result<void> done = exchange();
  if (!done) assembly.withdraw();
  station.assembly_mail().forget(key);
  if (!done) return done.error();
  return cards;
}

}  // namespace headrace::collectives
