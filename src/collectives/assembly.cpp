// SPDX-License-Identifier: Apache-2.0
#include "collectives/assembly.hpp"

#include "base/errors.hpp"
#include "base/random.hpp"
#include "collectives/station.hpp"
#include "collectives/work_state.hpp"
#include "wire/byte_writer.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace headrace::collectives {
namespace {

constexpr auto card_interval = std::chrono::milliseconds(20);
constexpr auto longest_answer =
    std::chrono::milliseconds(200);  // beyond the deadline, once all cards are here

std::string rank_text(std::size_t rank, const Seat& seat) {
  return fmt::format("rank {} (agent {})", rank, seat.agent);
}

/// Answers to cards are mailed as cards of a key of their own.
std::uint64_t key_of_answers(std::uint64_t key) { return ~key; }

/// One attempt of one rank.
class Assembly {
 public:
  Assembly(Station& station, std::uint64_t key, std::span<const Seat> seats, std::size_t mine,
           Deadline deadline, Interrupt interrupt)
      : station_(station),
        key_(key),
        seats_(seats),
        mine_(mine),
        deadline_(deadline),
        interrupt_(interrupt),
        answered_(seats.size()) {}

  Result<void> send_to_all(std::string_view card) {
    const auto pieces = AssemblyMail::pieces(key_, attempt_, card);
    HEADRACE_TRY_VOID(for_others([&](std::size_t rank) { return reach(rank); }));
    return for_others([&](std::size_t rank) { return mail_to(rank, pieces); });
  }

  /// The cards of all others, each of an attempt that has the card of this one.
  Result<std::vector<std::string>> cards_of_all() {
    HEADRACE_TRY_VOID(for_others([&](std::size_t rank) {
      return wait_until(rank, [&]() -> Result<bool> { return card_of(rank).has_value(); });
    }));
    HEADRACE_TRY_VOID(go_on());
    // From here on others may leave with this card: it does not give up at once.
    deadline_ = std::max(deadline_, Deadline::after(longest_answer));
    HEADRACE_TRY_VOID(for_others([&](std::size_t rank) { return answer(rank); }));
    std::vector<std::string> cards(seats_.size());
    HEADRACE_TRY_VOID(for_others(
        [&](std::size_t rank) { return wait_until(rank, [&] { return take_card(rank, cards[rank]); }); }));
    return cards;
  }

  /// Ranks that have not called yet are not to take this card. An empty one takes its place.
  void withdraw() {
    for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
      if (rank == mine_) continue;
      for (const std::string& piece : AssemblyMail::pieces(key_, random_u64(), {}))
        static_cast<void>(station_.agent().notify(seats_[rank].agent, Station::mail_of_assemblies(piece)));
    }
  }

  void forget() {
    mail().forget(key_);
    mail().forget(key_of_answers(key_));
  }

 private:
  /// Whether the card on which both have agreed has come; then `card` has it.
  Result<bool> take_card(std::size_t rank, std::string& card) {
    HEADRACE_TRY_VOID(answer(rank));
    auto agreed = agreed_card(rank);
    if (agreed) card = std::move(agreed->bytes);
    return agreed.has_value();
  }
  [[nodiscard]] AssemblyMail& mail() const { return station_.assembly_mail(); }

  /// The next rank first, so that not all begin with the same.
  Result<void> for_others(const auto& step) {
    for (std::size_t i = 1; i < seats_.size(); ++i) {
      const std::size_t rank = (mine_ + i) % seats_.size();
      if (Result<void> done = step(rank); !done)
        return std::move(done).error().within(rank_text(rank, seats_[rank]));
    }
    return {};
  }

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

  /// Sleeps while `ready` says no, as long as the rank is there.
  Result<void> wait_until(std::size_t rank, const auto& ready) {
    while (true) {
      const std::uint64_t count = mail().count();
      const bool gone = lost(rank);
      HEADRACE_TRY(is_ready, ready());
      if (is_ready) return {};
      if (gone) return make_error(Code::peer_lost, "it is gone");
      HEADRACE_TRY_VOID(go_on());
      mail().wait(count, Deadline::earliest(deadline_, Deadline::after(card_interval)));
    }
  }

  /// Tells the rank that its last card is here. Once for each card.
  Result<void> answer(std::size_t rank) {
    const auto card = card_of(rank);
    if (!card || card->attempt == answered_[rank]) return {};
    const std::string text = answer_text(attempt_, card->attempt);
    HEADRACE_TRY_VOID(mail_to(rank, AssemblyMail::pieces(key_of_answers(key_), random_u64(), text)));
    answered_[rank] = card->attempt;
    return {};
  }

  static std::string answer_text(std::uint64_t from, std::uint64_t to) {
    wire::ByteWriter writer;
    writer.number(from);
    writer.number(to);
    return std::move(writer).take();
  }

  /// The card of a rank, if the attempt that it is of has the card of this one.
  [[nodiscard]] std::optional<MailedCard> agreed_card(std::size_t rank) const {
    auto card = card_of(rank);
    const auto answer = mail().card(key_of_answers(key_), seats_[rank].agent);
    if (card && (!answer || answer->bytes != answer_text(card->attempt, attempt_))) card.reset();
    return card;
  }

  /// The card of a rank, unless it has withdrawn it.
  [[nodiscard]] std::optional<MailedCard> card_of(std::size_t rank) const {
    auto card = mail().card(key_, seats_[rank].agent);
    if (card && card->bytes.empty()) card.reset();
    return card;
  }

  Result<void> go_on() {
    if (interrupt_.asked()) return Interrupt::error();
    if (deadline_.expired())
      return make_error(Code::timed_out, "waits for ranks that have not come: {}", missing());
    return {};
  }

  /// The ranks whose cards have not come. One that has withdrawn its card was there, and waited for the
  /// others. If all cards are here, those that have not answered.
  [[nodiscard]] std::string missing() const {
    const auto without = [this](const auto& is_there) {
      std::string list;
      for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
        if (rank == mine_ || is_there(rank)) continue;
        list.append(list.empty() ? "" : ", ").append(std::to_string(rank));
      }
      return list;
    };
    std::string list =
        without([this](std::size_t rank) { return mail().card(key_, seats_[rank].agent).has_value(); });
    if (list.empty()) list = without([this](std::size_t rank) { return card_of(rank).has_value(); });
    if (list.empty()) list = without([this](std::size_t rank) { return agreed_card(rank).has_value(); });
    return list;
  }

  [[nodiscard]] bool lost(std::size_t rank) const {
    const std::vector<PeerInfo> peers = station_.agent().peers();
    const auto found = std::ranges::find(peers, seats_[rank].agent, &PeerInfo::name);
    return found == peers.end() || found->lost;
  }

  Station& station_;
  const std::uint64_t key_;
  const std::span<const Seat> seats_;
  const std::size_t mine_;
  Deadline deadline_;
  Interrupt interrupt_;
  const std::uint64_t attempt_ = random_u64();
  std::vector<std::uint64_t> answered_;  ///< the attempt of each rank that was answered last
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
  ++count_;
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

std::optional<MailedCard> AssemblyMail::card(std::uint64_t key, const std::string& from) const {
  const std::scoped_lock lock(mutex_);
  const auto found =
      std::ranges::find_if(cards_, [&](const Card& card) { return card.key == key && card.from == from; });
  if (found == cards_.end() || found->missing != 0) return std::nullopt;
  MailedCard whole{found->attempt, {}};
  for (const auto& piece : found->pieces) whole.bytes.append(*piece);
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

std::uint64_t AssemblyMail::count() const {
  const std::scoped_lock lock(mutex_);
  return count_;
}

void AssemblyMail::wait(std::uint64_t count, Deadline deadline) const {
  std::unique_lock lock(mutex_);
  came_.wait_for(lock, std::chrono::nanoseconds(deadline.remaining_ns()), [&] { return count_ > count; });
}

Result<std::vector<std::string>> exchange_cards(Station& station, std::uint64_t key,
                                                std::span<const Seat> seats, std::size_t mine,
                                                const std::string& card, Deadline deadline,
                                                Interrupt interrupt) {
  Assembly assembly(station, key, seats, mine, deadline, interrupt);
  auto cards = [&]() -> Result<std::vector<std::string>> {
    HEADRACE_TRY_VOID(assembly.send_to_all(card));
    return assembly.cards_of_all();
  }();
  if (!cards) {
    assembly.withdraw();
    return cards;
  }
  assembly.forget();
  (*cards)[mine] = card;
  return cards;
}

}  // namespace headrace::collectives
