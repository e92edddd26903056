// SPDX-License-Identifier: Apache-2.0
#include "wire/comm_cards.hpp"

#include <gmock/gmock.h>

namespace headrace::wire {
namespace {

using testing::HasSubstr;

/// Every card that is cut before byte `least` is refused.
template <class Card, class... Size>
void expect_refused_if_cut(const std::string& bytes, std::size_t least, Size... size) {
  for (std::size_t length = 0; length < least; ++length)
    EXPECT_EQ(Card::decode(bytes.substr(0, length), size...).code(), Code::corrupt) << length;
}

TEST(RankCard, is_read_as_it_was_written) {
  const RankCard card{1, 2, 3, 4, true, true, {"agent", "metadata"}};
  const std::string bytes = card.encode();
  const auto read = RankCard::decode(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->mailbox, 1U);
  EXPECT_EQ(read->lane_bytes, 2U);
  EXPECT_EQ(read->message_lane_bytes, 3U);
  EXPECT_EQ(read->box, 4U);
  EXPECT_TRUE(read->check);
  EXPECT_TRUE(read->lazy);
  EXPECT_EQ(read->seat.agent, "agent");
  EXPECT_EQ(read->seat.metadata, "metadata");
  expect_refused_if_cut<RankCard>(bytes, bytes.size() - card.seat.metadata.size());
}

TEST(SplitCard, is_read_as_it_was_written) {
  const SplitCard card{{2, 0}, "half", "rank card"};
  const std::string bytes = card.encode();
  const auto read = SplitCard::decode(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->ranks, card.ranks);
  EXPECT_EQ(read->name, "half");
  EXPECT_EQ(read->rank_card, "rank card");
  expect_refused_if_cut<SplitCard>(bytes, bytes.size() - card.rank_card.size());
  EXPECT_EQ(SplitCard::decode(std::string(4, '\xff')).code(), Code::corrupt) << "four billion ranks";
}

TEST(CallCard, is_read_as_it_was_written) {
  const CallCard card{"text", "must", "way", CommOperation::gather, 3, {1, 2}, {}};
  const std::string bytes = card.encode();
  const auto read = CallCard::decode(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->text, "text");
  EXPECT_EQ(read->must, "must");
  EXPECT_EQ(read->way, "way");
  EXPECT_EQ(read->kind, CommOperation::gather);
  EXPECT_EQ(read->root, 3);
  EXPECT_EQ(read->gives, card.gives);
  EXPECT_TRUE(read->expects.empty());
  expect_refused_if_cut<CallCard>(bytes, bytes.size());
}

TEST(MeetingTable, is_read_as_it_was_written) {
  const MeetingTable table{7, {{1, 0, false, "first"}, {2, 0, false, ""}}};
  const std::string bytes = table.encode();
  const auto read = MeetingTable::decode(bytes, 2);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->id, 7U);
  ASSERT_EQ(read->entries.size(), 2U);
  EXPECT_EQ(read->entries[0].nonce, 1U);
  EXPECT_EQ(read->entries[0].bytes, "first");
  EXPECT_EQ(read->entries[1].nonce, 2U);
  expect_refused_if_cut<MeetingTable>(bytes, bytes.size(), std::size_t{2});
  EXPECT_EQ(MeetingTable::decode(bytes, 3).code(), Code::corrupt) << "of three ranks";
}

TEST(MeetingEntry, is_read_as_it_was_written) {
  const std::string bytes = MeetingEntry{5, 6, true, "card"}.encode();
  const auto read = MeetingEntry::decode(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->nonce, 5U);
  EXPECT_EQ(read->confirmed, 6U);
  EXPECT_TRUE(read->done);
  EXPECT_EQ(read->bytes, "card");
  expect_refused_if_cut<MeetingEntry>(bytes, bytes.size() - 4);
}

TEST(CardPiece, of_an_impossible_number_is_refused) {
  const CardPiece piece{1, 2, 3, 4, "bytes"};
  const auto read = CardPiece::decode(piece.encode());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->number, 3U);
  EXPECT_EQ(read->count, 4U);
  expect_refused_if_cut<CardPiece>(piece.encode(), piece.encode().size() - 5);
  EXPECT_THAT(CardPiece::decode(CardPiece{1, 2, 4, 4, ""}.encode()).error().message,
              HasSubstr("piece 4 of 4"));
  EXPECT_EQ(CardPiece::decode(CardPiece{1, 2, 0, CardPiece::most + 1, ""}.encode()).code(), Code::corrupt);
}

TEST(GpuCard, is_read_as_it_was_written) {
  const GpuCard card{1, 2, 3, 4, 5, "GPU-7a1c"};
  const auto read = GpuCard::decode(card.encode());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->blocks, 1U);
  EXPECT_EQ(read->packet_bytes, 2U);
  EXPECT_EQ(read->chunk_bytes, 3U);
  EXPECT_EQ(read->slots, 4U);
  EXPECT_EQ(read->copy_bytes, 5U);
  EXPECT_EQ(read->gpu, "GPU-7a1c");
  expect_refused_if_cut<GpuCard>(card.encode(), card.encode().size());
}

TEST(BoxCard, is_read_as_it_was_written) {
  const BoxCard card{44, "metadata"};
  const auto read = BoxCard::decode(card.encode());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->most_blocks, 44U);
  EXPECT_EQ(read->metadata, "metadata");
  expect_refused_if_cut<BoxCard>(card.encode(), sizeof card.most_blocks);
}

TEST(TensorCard, is_read_as_it_was_written) {
  const TensorCard card{4096, "metadata"};
  const auto read = TensorCard::decode(card.encode());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->bytes, 4096U);
  EXPECT_EQ(read->metadata, "metadata");
  expect_refused_if_cut<TensorCard>(card.encode(), sizeof card.bytes);
}

TEST(TensorPlaces, has_a_place_for_each_rank) {
  const std::string bytes = TensorPlaces{{0, 4096, 8192}}.encode();
  const auto read = TensorPlaces::decode(bytes, 3);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->places, (std::vector<std::uint64_t>{0, 4096, 8192}));
  EXPECT_EQ(TensorPlaces::decode(bytes, 4).code(), Code::corrupt);
  EXPECT_THAT(TensorPlaces::decode(bytes, 2).error().message, HasSubstr("8 bytes follow"));
}

TEST(ElementsCard, of_an_impossible_type_or_count_is_refused) {
  const std::string bytes = ElementsCard{7, DType::int64}.encode();
  const auto read = ElementsCard::decode(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->count, 7U);
  EXPECT_EQ(read->dtype, DType::int64);
  expect_refused_if_cut<ElementsCard>(bytes, bytes.size());
  EXPECT_THAT(ElementsCard::decode(bytes + "x").error().message, HasSubstr("1 bytes follow"));
  EXPECT_THAT(ElementsCard::decode(ElementsCard{1, static_cast<DType>(dtype_count)}.encode()).error().message,
              HasSubstr("does not exist"));
  EXPECT_THAT(ElementsCard::decode(ElementsCard{UINT64_MAX, DType::int64}.encode()).error().message,
              HasSubstr("more than any memory"));
}

TEST(Saying, is_read_as_it_was_written_and_its_text_is_cut) {
  const Saying saying{Saying::Kind::left, 7, std::string(Saying::most_text + 1, 'x')};
  const auto read = Saying::decode(saying.encode());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->kind, Saying::Kind::left);
  EXPECT_EQ(read->number, 7U);
  EXPECT_EQ(read->text, std::string(Saying::most_text, 'x'));
  const std::string bytes = Saying{Saying::Kind::aborted, 0, "why"}.encode();
  expect_refused_if_cut<Saying>(bytes, bytes.size());
  EXPECT_THAT(Saying::decode("\6" + bytes.substr(1)).error().message, HasSubstr("kind 6 is none"));
}

const WindowCard example{3, 77, 5, 6, 1000, 4096, DType::int64, true, {"agent", "metadata"}};

TEST(WindowCard, is_read_as_it_was_written) {
  const auto read = WindowCard::decode(example.encode());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->window, 3U);
  EXPECT_EQ(read->mailbox, 77U);
  EXPECT_EQ(read->elements, 5U);
  EXPECT_EQ(read->signals, 6U);
  EXPECT_EQ(read->count, 1000U);
  EXPECT_EQ(read->address, 4096U);
  EXPECT_EQ(read->dtype, DType::int64);
  EXPECT_TRUE(read->allocated);
  EXPECT_EQ(read->seat.agent, "agent");
  EXPECT_EQ(read->seat.metadata, "metadata");
}

TEST(WindowCard, that_is_cut_off_or_has_impossible_values_is_refused) {
  const std::string bytes = example.encode();
  const std::size_t least = bytes.size() - example.seat.metadata.size();
  for (std::size_t length = 0; length < least; ++length)
    EXPECT_EQ(WindowCard::decode(bytes.substr(0, length)).code(), Code::corrupt) << length;
  WindowCard other = example;
  other.dtype = static_cast<DType>(99);
  EXPECT_THAT(WindowCard::decode(other.encode()).error().message, HasSubstr("element type 99 is none"));
  other = example;
  other.count = ~std::uint64_t{0};
  EXPECT_THAT(WindowCard::decode(other.encode()).error().message, HasSubstr("are too many"));
}

TEST(Outcome, is_read_with_the_bytes_behind_it) {
  const std::string all_right = Outcome::encode({}) + "rest";
  const auto good = Outcome::decode(all_right);
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good->result.ok());
  EXPECT_EQ(good->rest, "rest");
  const std::string bytes = Outcome::encode(Error{Code::exhausted, "no memory"});
  const auto bad = Outcome::decode(bytes);
  ASSERT_TRUE(bad.ok());
  EXPECT_EQ(bad->result.code(), Code::exhausted);
  EXPECT_EQ(bad->result.error().message, "no memory");
  EXPECT_EQ(Outcome::decode(bytes.substr(0, 8)).code(), Code::corrupt);
  EXPECT_EQ(Outcome::decode(std::string(6, '\x7f')).code(), Code::corrupt);
}

}  // namespace
}  // namespace headrace::wire
