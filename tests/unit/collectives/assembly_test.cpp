// SPDX-License-Identifier: Apache-2.0
// Cards in pieces, as ranks mail them to put a communicator together.
#include "collectives/assembly.hpp"

#include "base/random.hpp"
#include "collectives/station.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>

namespace headrace::collectives {
namespace {

std::string long_card(char first) {
  std::string card(200'001, 'x');
  card.front() = first;
  return card;
}

TEST(AssemblyMail, a_card_is_whole_once_all_its_pieces_have_come_in_any_order) {
  AssemblyMail mail;
  auto pieces = AssemblyMail::pieces(7, 1, long_card('a'));
  ASSERT_GT(pieces.size(), 2U);
  std::ranges::reverse(pieces);
  for (const std::string& piece : pieces) {
    EXPECT_FALSE(mail.card(7, "peer"));
    mail.put("peer", piece);
    mail.put("peer", piece);  // twice is as good as once
  }
  EXPECT_EQ(mail.card(7, "peer"), (MailedCard{1, long_card('a')}));
  EXPECT_FALSE(mail.card(7, "another"));
  EXPECT_FALSE(mail.card(8, "peer"));
  mail.forget(7);
  EXPECT_FALSE(mail.card(7, "peer"));
}

TEST(AssemblyMail, the_card_of_a_later_attempt_takes_the_place_of_an_earlier_one) {
  AssemblyMail mail;
  for (const std::string& piece : AssemblyMail::pieces(7, 1, long_card('a'))) mail.put("peer", piece);
  const auto pieces = AssemblyMail::pieces(7, 2, long_card('b'));
  mail.put("peer", pieces.front());
  EXPECT_FALSE(mail.card(7, "peer"));
  for (const std::string& piece : pieces) mail.put("peer", piece);
  EXPECT_EQ(mail.card(7, "peer"), (MailedCard{2, long_card('b')}));
  for (const std::string& piece : AssemblyMail::pieces(7, 3, "")) mail.put("peer", piece);
  EXPECT_EQ(mail.card(7, "peer"), (MailedCard{3, ""}));
}

TEST(AssemblyMail, what_is_no_piece_is_ignored) {
  AssemblyMail mail;
  std::string piece = AssemblyMail::pieces(7, 1, "card").front();
  for (std::size_t length = 0; length < 24; ++length) mail.put("peer", piece.substr(0, length));
  piece[16] = 9;  // piece 9 of 1
  mail.put("peer", piece);
  piece[20] = piece[21] = piece[22] = piece[23] = '\xff';  // of four billion
  mail.put("peer", piece);
  EXPECT_FALSE(mail.card(7, "peer"));
}

TEST(AssemblyMail, cards_that_nobody_asks_for_give_way_to_later_ones) {
  AssemblyMail mail;
  for (std::uint64_t key = 0; key < 10'000; ++key)
    mail.put("peer", AssemblyMail::pieces(key, 1, "x").front());
  EXPECT_FALSE(mail.card(0, "peer"));
  EXPECT_EQ(mail.card(9'999, "peer"), (MailedCard{1, "x"}));
}

TEST(AssemblyMail, the_places_of_pieces_that_have_not_come_take_room_too) {
  AssemblyMail mail;
  mail.put("peer", AssemblyMail::pieces(0, 1, "x").front());
  for (std::uint64_t key = 1; key < 2'000; ++key) {
    const wire::CardPiece piece{key, 1, 0, wire::CardPiece::most, "x"};
    mail.put("peer", piece.encode());
  }
  EXPECT_FALSE(mail.card(0, "peer")) << "two thousand cards of two thousand pieces are kept";
}

// Two ranks that put a communicator together.
class TwoStations : public testing::Test {
 protected:
  static constexpr std::uint64_t key = 7;

  void SetUp() override {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      auto opened = Station::open(fmt::format("assembly-{:016x}", random_u64()), {"shm"}, true);
      ASSERT_TRUE(opened.ok()) << opened.error().message;
      stations_[rank] = std::move(*opened);
      auto metadata = stations_[rank]->agent().export_metadata();
      ASSERT_TRUE(metadata.ok()) << metadata.error().message;
      seats_.push_back({name(rank), std::move(*metadata)});
    }
  }

  [[nodiscard]] std::string name(std::size_t rank) const { return stations_[rank]->agent().name(); }
  [[nodiscard]] AssemblyMail& mail(std::size_t rank) const { return stations_[rank]->assembly_mail(); }

  Result<std::vector<std::string>> exchange(std::size_t rank, const std::string& card,
                                            std::chrono::milliseconds limit) {
    return exchange_cards(*stations_[rank], key, seats_, rank, card, Deadline::after(limit), {});
  }

  std::array<std::shared_ptr<Station>, 2> stations_;
  std::vector<Seat> seats_;
};

TEST_F(TwoStations, take_no_card_of_an_attempt_that_has_failed) {
  EXPECT_EQ(exchange(0, "of a failed attempt", std::chrono::milliseconds(20)).code(), Code::timed_out);
  while (!mail(1).card(key, name(0)).value_or(MailedCard{1, "not yet"}).bytes.empty())
    std::this_thread::yield();
  // As if its withdrawal were still under way.
  mail(1).put(name(0), AssemblyMail::pieces(key, 1, "of a failed attempt").front());
  Result<std::vector<std::string>> late = Error{Code::internal, "it has not run"};
  std::thread second([&] { late = exchange(1, "b", std::chrono::seconds(60)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it has taken in the old card
  const auto cards = exchange(0, "a", std::chrono::seconds(60));
  second.join();
  ASSERT_TRUE(cards.ok()) << cards.error().message;
  ASSERT_TRUE(late.ok()) << late.error().message;
  EXPECT_THAT(*cards, testing::ElementsAre("a", "b"));
  EXPECT_THAT(*late, testing::ElementsAre("a", "b"));
}

TEST_F(TwoStations, keep_a_card_that_comes_before_their_own_attempt_has_failed) {
  EXPECT_EQ(exchange(0, "a", std::chrono::milliseconds(20)).code(), Code::timed_out);
  std::thread second([&] { EXPECT_TRUE(exchange(1, "b", std::chrono::seconds(60)).ok()); });
  while (!mail(0).card(key, name(1))) std::this_thread::yield();
  EXPECT_EQ(exchange(0, "a", std::chrono::milliseconds(0)).code(), Code::timed_out);
  const auto cards = exchange(0, "c", std::chrono::seconds(60));
  second.join();
  ASSERT_TRUE(cards.ok()) << cards.error().message;
  EXPECT_THAT(*cards, testing::ElementsAre("c", "b"));
}

TEST_F(TwoStations, name_a_rank_that_has_a_card_and_does_not_answer) {
  mail(0).put(name(1), AssemblyMail::pieces(key, 1, "b").front());
  const auto cards = exchange(0, "a", std::chrono::milliseconds(20));
  ASSERT_EQ(cards.code(), Code::timed_out);
  EXPECT_THAT(cards.error().message, testing::HasSubstr("waits for ranks that have not come: 1"));
}

}  // namespace
}  // namespace headrace::collectives
