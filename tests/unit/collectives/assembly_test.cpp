// SPDX-License-Identifier: Apache-2.0
// Cards in pieces, as ranks mail them to put a communicator together.
#include "collectives/assembly.hpp"

#include <gtest/gtest.h>

#include <algorithm>

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
  EXPECT_EQ(mail.card(7, "peer"), long_card('a'));
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
  EXPECT_EQ(mail.card(7, "peer"), long_card('b'));
  for (const std::string& piece : AssemblyMail::pieces(7, 3, "")) mail.put("peer", piece);
  EXPECT_EQ(mail.card(7, "peer"), "");
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
  EXPECT_EQ(mail.card(9'999, "peer"), "x");
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

}  // namespace
}  // namespace headrace::collectives
