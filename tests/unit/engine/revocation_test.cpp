// SPDX-License-Identifier: Apache-2.0
#include "engine/revocation.hpp"
#include "unit/engine/parts.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <variant>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

const headrace_backend_v1 backend_of_revocation = recording_table("first");

class RevocationTest : public testing::Test {
 protected:
  RevocationTest() : backend(parts.add(backend_of_revocation)) {}
  /// The latest message to a peer.
  template <class Message>
  static Message last() {
    return std::get<Message>(wire::decode_agent_message(Recorded::last_message()).value());
  }
  Result<void> ask() { return parts.revocation.ask_peers(ranges, Deadline::at_ns(parts.clock.now_ns())); }

  Parts parts;
  BackendInstance& backend;
  const std::vector<IdRange> ranges{{1, 1}};
};

TEST_F(RevocationTest, no_peer_is_asked_without_a_link) { EXPECT_TRUE(ask()); }

TEST_F(RevocationTest, a_peer_that_does_not_answer_is_named) {
  parts.ready_link(parts.import("there"), backend);
  const auto asked = ask();
  EXPECT_EQ(asked.code(), Code::timed_out);
  EXPECT_EQ(asked.error().message,
            "no answer from there: the regions stay registered; try again, or forget the peer");
  EXPECT_EQ(last<wire::Revoke>().ranges, ranges);
}

TEST_F(RevocationTest, the_round_ends_with_the_answers_of_all_links) {
  const auto first = parts.ready_link(parts.import("first"), backend);
  const auto second = parts.ready_link(parts.import("second"), backend);
  std::thread answering([&] {
    while (Recorded::message_count() < 2) std::this_thread::yield();
    parts.revocation.answered(*first, last<wire::Revoke>().sequence);
    parts.links.end(second);  // a peer that is gone need not answer
  });
  EXPECT_TRUE(parts.revocation.ask_peers(ranges, Deadline::never()));
  answering.join();
}

TEST_F(RevocationTest, a_link_that_is_made_during_a_round_is_asked) {
  const auto first = parts.ready_link(parts.import("first"), backend);
  std::thread joining([&] {
    while (Recorded::message_count() == 0) std::this_thread::yield();
    const auto second = parts.ready_link(parts.import("second"), backend);
    parts.revocation.answered(*first, last<wire::Revoke>().sequence);
    while (Recorded::message_count() < 2) std::this_thread::yield();
    parts.revocation.answered(*second, last<wire::Revoke>().sequence);
  });
  EXPECT_TRUE(parts.revocation.ask_peers(ranges, Deadline::never()));
  joining.join();
  EXPECT_EQ(Recorded::message_count(), 2U);
}

TEST_F(RevocationTest, a_full_link_is_asked_again_after_a_while) {
  parts.ready_link(parts.import("there"), backend);
  Recorded::full = true;
  std::thread emptying([&] {
    std::this_thread::yield();
    Recorded::full = false;
    while (Recorded::message_count() == 0) parts.clock.advance(1ms);
    parts.revocation.answered(*parts.links.all().front(), last<wire::Revoke>().sequence);
  });
  EXPECT_TRUE(parts.revocation.ask_peers(ranges, Deadline::never()));
  emptying.join();
}

TEST_F(RevocationTest, a_peers_region_is_gone_at_once_and_the_answer_follows) {
  const auto life = parts.import("there");
  const auto link = parts.ready_link(life, backend);
  const std::uint64_t epoch = life->epoch.load();
  parts.revocation.asked(link, 42, ranges);
  EXPECT_EQ(life->regions.find(1), nullptr);
  EXPECT_GT(life->epoch.load(), epoch);
  EXPECT_EQ(last<wire::Revoked>().sequence, 42U);
}

TEST_F(RevocationTest, an_answer_that_finds_no_room_is_sent_later) {
  const auto link = parts.ready_link(parts.import("there"), backend);
  Recorded::full = true;
  parts.revocation.asked(link, 42, ranges);
  EXPECT_EQ(Recorded::message_count(), 0U);
  Recorded::full = false;
  parts.clock.advance(1ms);
  (void)parts.progress->poll();
  EXPECT_EQ(last<wire::Revoked>().sequence, 42U);
}

/// How often the backend was asked to send while it was full.
std::size_t attempts = 0;

TEST_F(RevocationTest, answers_that_find_no_room_are_tried_once_a_while_however_many_they_are) {
  static headrace_backend_v1 table = recording_table("counting");
  table.notify = [](void*, void*, uint32_t, const void*, size_t) {
    ++attempts;
    return headrace_status_v1{HEADRACE_WOULD_BLOCK, 0, HEADRACE_NO_PAGE};
  };
  const auto link = parts.ready_link(parts.import("there"), parts.add(table));
  constexpr std::size_t asked = 100;
  for (std::size_t i = 0; i < asked; ++i) parts.revocation.asked(link, i, ranges);
  attempts = 0;
  parts.clock.advance(1ms);
  (void)parts.progress->poll();
  EXPECT_EQ(attempts, 1U);
}

}  // namespace
}  // namespace headrace::engine
