// SPDX-License-Identifier: Apache-2.0
#include "transport/message_inbox.hpp"
#include "transport/message_outbox.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace headrace::transport {
namespace {

using State = OutMessage::State;

TEST(MessageOutbox, a_waiting_message_holds_back_later_ones_of_its_channel_only) {
  MessageOutbox outbox;
  const auto bound = outbox.add(0, "bound", State::waiting);
  outbox.add(0, "later", State::ready);
  outbox.add(1, "other channel", State::ready);
  EXPECT_EQ(outbox.next()->bytes, "other channel");
  EXPECT_FALSE(outbox.next());
  EXPECT_FALSE(outbox.anything_ready());
  bound->state = State::ready;
  bound->request = 7;
  bound->chunks = 3;
  const auto first = outbox.next();
  EXPECT_EQ(first->bytes, "bound");
  EXPECT_EQ(first->head.request, 7U);
  EXPECT_EQ(first->head.chunks, 3U);
  EXPECT_EQ(outbox.next()->bytes, "later");
}

TEST(MessageOutbox, a_dropped_message_goes_over_only_if_the_peer_waits_for_it) {
  MessageOutbox outbox;
  const auto unheard = outbox.add(0, "a", State::waiting);
  const auto heard = outbox.add(0, "b", State::waiting);
  outbox.add(0, "c", State::ready);
  unheard->state = State::dropped;
  heard->state = State::dropped;
  heard->request = 9;
  heard->chunks = 2;
  const auto first = outbox.next();
  EXPECT_EQ(first->head.request, 9U);
  EXPECT_TRUE(first->head.dropped);
  EXPECT_EQ(first->bytes, "");
  EXPECT_EQ(outbox.next()->bytes, "c");
}

TEST(MessageOutbox, room_ends_at_the_limits_and_comes_back_with_acknowledgements) {
  MessageOutbox outbox;
  for (std::size_t i = 0; i < max_unacknowledged_messages; ++i) {
    ASSERT_TRUE(outbox.has_room(0, 1));
    outbox.add(0, "x", State::ready);
  }
  EXPECT_FALSE(outbox.has_room(0, 1));
  EXPECT_TRUE(outbox.has_room(1, 1));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(outbox.next());
  EXPECT_FALSE(outbox.has_room(0, 1)) << "sent is not delivered";
  EXPECT_TRUE(outbox.acknowledged(0, 4).ok());
  EXPECT_TRUE(outbox.has_room(0, 1));

  for (int i = 0; i < 64; ++i) outbox.add(2, std::string(65536, 'y'), State::ready);
  EXPECT_FALSE(outbox.has_room(2, 1));
}

TEST(MessageOutbox, acknowledging_more_than_was_sent_is_corrupt) {
  MessageOutbox outbox;
  EXPECT_EQ(outbox.acknowledged(0, 1).code(), Code::corrupt);
  outbox.add(0, "x", State::ready);
  EXPECT_TRUE(outbox.next());
  EXPECT_EQ(outbox.acknowledged(0, 2).code(), Code::corrupt);
  EXPECT_TRUE(outbox.acknowledged(0, 1).ok());
  EXPECT_EQ(outbox.acknowledged(0, 0).code(), Code::corrupt);
}

TEST(MessageOutbox, dropped_messages_leave_no_debt_behind) {
  MessageOutbox outbox;
  MessageInbox inbox;
  // Many times the limit in bytes, all dropped after their chunks went out.
  for (std::uint64_t i = 1; i <= 400; ++i) {
    ASSERT_TRUE(outbox.has_room(0, 65536)) << i;
    const auto message = outbox.add(0, std::string(65536, 'd'), State::waiting);
    message->state = State::dropped;
    message->request = i;
    message->chunks = 1;
    const auto next = outbox.next();
    ASSERT_TRUE(inbox.chunk(i, true).ok());
    ASSERT_TRUE(inbox.message(next->head, next->bytes).ok());
    EXPECT_FALSE(inbox.next());
    while (const auto ack = inbox.acknowledgement())
      ASSERT_TRUE(outbox.acknowledged(ack->channel, ack->delivered).ok());
  }
}

/// As a transport that keeps messages in order reports them.
Result<void> arrives(MessageInbox& inbox, std::uint16_t channel, std::string bytes, std::uint64_t request = 0,
                     std::uint32_t chunks = 0, bool dropped = false) {
  return inbox.message({channel, inbox.next_number(channel), request, chunks, dropped, false},
                       std::move(bytes));
}

TEST(MessageInbox, a_bound_message_waits_for_all_chunks_whichever_comes_first) {
  MessageInbox inbox;
  ASSERT_TRUE(inbox.chunk(5, true).ok());
  ASSERT_TRUE(arrives(inbox, 0, "bound", 5, 3).ok());
  ASSERT_TRUE(arrives(inbox, 0, "later").ok());
  ASSERT_TRUE(arrives(inbox, 1, "aside").ok());
  EXPECT_EQ(inbox.next()->bytes, "aside");
  EXPECT_FALSE(inbox.next());
  ASSERT_TRUE(inbox.chunk(5, true).ok());
  EXPECT_FALSE(inbox.next());
  ASSERT_TRUE(inbox.chunk(5, true).ok());
  EXPECT_EQ(inbox.next()->bytes, "bound");
  EXPECT_EQ(inbox.next()->bytes, "later");
  EXPECT_FALSE(inbox.next());
}

TEST(MessageInbox, a_message_of_a_failed_or_dropped_write_is_not_delivered) {
  MessageInbox inbox;
  ASSERT_TRUE(inbox.chunk(5, false).ok());
  ASSERT_TRUE(arrives(inbox, 0, "failed", 5, 1).ok());
  ASSERT_TRUE(arrives(inbox, 0, "", 6, 1, true).ok());
  ASSERT_TRUE(arrives(inbox, 0, "after").ok());
  EXPECT_FALSE(inbox.next()) << "a chunk of the dropped write is still under way";
  ASSERT_TRUE(inbox.chunk(6, true).ok());
  EXPECT_EQ(inbox.next()->bytes, "after");
}

TEST(MessageInbox, a_peer_that_goes_beyond_the_limits_is_found_out) {
  MessageInbox inbox;
  ASSERT_TRUE(arrives(inbox, 0, "waits", 1, 1).ok());
  for (std::size_t i = 1; i < max_unacknowledged_messages; ++i) ASSERT_TRUE(arrives(inbox, 0, "x").ok());
  EXPECT_EQ(arrives(inbox, 0, "x").code(), Code::corrupt);
  for (std::uint16_t channel = 1; channel < max_message_channels; ++channel)
    ASSERT_TRUE(arrives(inbox, channel, "x").ok());
  EXPECT_EQ(arrives(inbox, 99, "x").code(), Code::corrupt);
  EXPECT_EQ(arrives(inbox, 0, "twice", 1, 1).code(), Code::corrupt);
  ASSERT_TRUE(inbox.chunk(1, true).ok());
  EXPECT_EQ(inbox.chunk(1, true).code(), Code::corrupt);
}

TEST(MessageInbox, open_writes_are_bounded) {
  MessageInbox inbox;
  Result<void> result;
  std::uint64_t opened = 0;
  while (result.ok() && opened < 1'000'000) result = inbox.chunk(++opened, true);
  EXPECT_EQ(result.code(), Code::corrupt);
  EXPECT_LE(opened, max_message_channels * max_unacknowledged_messages + 1);
}

TEST(MessageInbox, the_sender_hears_before_it_has_to_stop) {
  MessageInbox inbox;
  MessageOutbox outbox;
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(outbox.has_room(3, 9000)) << i;
    outbox.add(3, std::string(9000, 'z'), State::ready);
    const auto next = outbox.next();
    ASSERT_TRUE(inbox.message(next->head, next->bytes).ok());
    ASSERT_TRUE(inbox.next());
    while (const auto ack = inbox.acknowledgement())
      ASSERT_TRUE(outbox.acknowledged(ack->channel, ack->delivered).ok());
  }
}

TEST(MessageInbox, messages_that_come_in_any_order_are_delivered_in_theirs) {
  MessageInbox inbox;
  ASSERT_TRUE(inbox.message({.channel = 0, .number = 2, .request = 5, .chunks = 1}, "third").ok());
  ASSERT_TRUE(inbox.message({.channel = 0, .number = 1}, "second").ok());
  EXPECT_FALSE(inbox.next());
  ASSERT_TRUE(inbox.message({.channel = 0, .number = 0}, "first").ok());
  EXPECT_EQ(inbox.next()->bytes, "first");
  EXPECT_EQ(inbox.next()->bytes, "second");
  EXPECT_FALSE(inbox.next());
  ASSERT_TRUE(inbox.chunk(5, true).ok());
  EXPECT_EQ(inbox.next()->bytes, "third");
}

TEST(MessageInbox, a_message_that_comes_again_is_dropped) {
  MessageInbox inbox;
  const MessageHead bound{.channel = 0, .number = 0, .request = 5, .chunks = 1};
  ASSERT_TRUE(inbox.message(bound, "once").ok());
  ASSERT_TRUE(inbox.message(bound, "once").ok()) << "while it waits";
  ASSERT_TRUE(inbox.chunk(5, true).ok());
  EXPECT_EQ(inbox.next()->bytes, "once");
  ASSERT_TRUE(inbox.message(bound, "once").ok()) << "after it was delivered";
  EXPECT_FALSE(inbox.next());
}

TEST(MessageInbox, a_message_far_ahead_of_those_that_came_is_refused) {
  MessageInbox inbox;
  EXPECT_TRUE(inbox.message({.channel = 0, .number = max_unacknowledged_messages - 1}, "x").ok());
  EXPECT_EQ(inbox.message({.channel = 0, .number = max_unacknowledged_messages}, "x").code(), Code::corrupt);
}

TEST(MessageOutbox, messages_are_numbered_a_channel) {
  MessageOutbox outbox;
  for (const std::uint64_t number : {0U, 1U, 2U}) {
    outbox.add(0, "x", State::ready);
    EXPECT_EQ(outbox.next()->head.number, number);
  }
  outbox.add(1, "x", State::ready);
  EXPECT_EQ(outbox.next()->head.number, 0U);
}

}  // namespace
}  // namespace headrace::transport
