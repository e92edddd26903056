// SPDX-License-Identifier: Apache-2.0
// Senders that are faster than the receiver takes: they hear would_block, and nothing that was accepted is
// lost.
#include "two_agents.hpp"

#include "support/heap_in_use.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace headrace::test {
namespace {

class NotificationFlow : public ::testing::TestWithParam<std::string> {
 protected:
  /// As many messages as a link may have at once, however small the inbox is.
  static constexpr std::size_t share = 1024;
  static constexpr auto small_inbox = "1";

  Agent open(const std::string& stem) {
    return must(Agent::open(unique_name(stem), {{GetParam()}, "", "", {{"inbox_capacity", small_inbox}}}));
  }
  static void introduce(Agent& a, Agent& b) {
    must(a.import_metadata(must(b.export_metadata())));
    must(b.import_metadata(must(a.export_metadata())));
    must(b.connect(a.name(), patience));
  }
  /// Until the peer has no room, which is not the same as a way that is full for a moment: for long before
  /// `least` were accepted, for a while after that. Returns how many were accepted.
  static std::size_t send_until_full(Agent& from, const std::string& to, std::size_t least) {
    std::size_t sent = 0;
    auto give_up = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < give_up) {
      const auto result = from.notify(to, std::to_string(sent));
      if (!result.ok()) {
        EXPECT_EQ(result.code(), Code::would_block) << result.error().message;
        std::this_thread::yield();
        continue;
      }
      if (++sent >= least) give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    }
    return sent;
  }
  static std::uint64_t dropped(const Agent& agent) {
    return agent.telemetry().counters.at("notifications.dropped");
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, NotificationFlow, ::testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend.param; });

TEST_P(NotificationFlow, of_eight_fast_senders_nothing_accepted_is_lost_and_each_keeps_its_order) {
  constexpr std::size_t senders = 8, each = 2000;
  Agent hub = open("hub");
  std::vector<Agent> agents;
  for (std::size_t i = 0; i < senders; ++i) introduce(hub, agents.emplace_back(open("sender")));
  std::atomic<std::uint64_t> blocked = 0;
  std::vector<std::jthread> threads;
  for (Agent& agent : agents)
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < each;) {
        const auto sent = agent.notify(hub.name(), std::to_string(i));
        if (sent.ok()) {
          ++i;
          continue;
        }
        ASSERT_EQ(sent.code(), Code::would_block) << sent.error().message;
        ++blocked;
        std::this_thread::yield();
      }
    });
  std::map<std::string, std::size_t> came;
  for (std::size_t all = 0; all < senders * each;) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // slower than they are
    const auto first = must(hub.wait_notification(patience));
    ASSERT_EQ(first.payload, std::to_string(came[first.peer]++));
    ++all;
    for (const Notification& n : must(hub.take_notifications())) {
      ASSERT_EQ(n.payload, std::to_string(came[n.peer]++));
      ++all;
    }
  }
  threads.clear();
  EXPECT_GT(blocked, 0U);
  EXPECT_EQ(dropped(hub), 0U);
}

TEST_P(NotificationFlow, a_full_peer_has_room_again_when_it_takes_and_others_are_not_held_up) {
  Agent hub = open("hub"), full = open("full"), other = open("other");
  introduce(hub, full);
  introduce(hub, other);
  EXPECT_EQ(send_until_full(full, hub.name(), share), share);
  must(other.notify(hub.name(), "hello"));
  EXPECT_EQ(must(hub.wait_notification(patience, {other.name(), ""})).payload, "hello");
  for (std::size_t i = 0; i < share; ++i)
    EXPECT_EQ(must(hub.wait_notification(patience, {full.name(), ""})).payload, std::to_string(i));
  const auto limit = std::chrono::steady_clock::now() + patience;
  while (!full.notify(hub.name(), "again").ok()) ASSERT_LT(std::chrono::steady_clock::now(), limit);
  EXPECT_EQ(must(hub.wait_notification(patience)).payload, "again");
}

TEST_P(NotificationFlow, a_post_with_a_message_is_refused_while_the_peer_has_no_room) {
  Agent hub = open("hub"), full = open("full");
  std::vector<std::byte> source = random_bytes(4096, 1), target(4096);
  const Region mine = must(full.register_memory({source.data(), source.size()}));
  const Region far = must(hub.register_memory({target.data(), target.size()}));
  introduce(hub, full);
  const UniformPages here{mine.id, 0, 0, 4096, 1}, there{far.id, 0, 0, 4096, 1};
  Request request = must(full.write(hub.name(), here, there));
  EXPECT_EQ(send_until_full(full, hub.name(), share), share);
  const PostOptions with_message{.notification = "it is there"};
  EXPECT_EQ(request.post(with_message).code, Code::would_block);
  EXPECT_TRUE(request.post().ok()) << "without a message it needs no room";
  EXPECT_TRUE(request.wait(patience).ok());
  while (!must(hub.wait_notification(patience)).payload.starts_with(std::to_string(share - 1))) {
  }
  const auto limit = std::chrono::steady_clock::now() + patience;
  while (request.post(with_message).code == Code::would_block)
    ASSERT_LT(std::chrono::steady_clock::now(), limit);
  EXPECT_TRUE(request.wait(patience).ok());
  EXPECT_EQ(must(hub.wait_notification(patience)).payload, "it is there");
  EXPECT_EQ(target, source);
}

TEST_P(NotificationFlow, posts_that_are_canceled_give_back_the_room_of_their_messages) {
  auto options = slow_enough_to_cancel(GetParam());
  options["inbox_capacity"] = small_inbox;
  Agent hub = must(Agent::open(unique_name("hub"), {{GetParam()}, "", "", options}));
  Agent here = must(Agent::open(unique_name("here"), {{GetParam()}, "", "", options}));
  std::vector<std::byte> source(std::size_t{1} << 20), target(source.size());
  const Region mine = must(here.register_memory({source.data(), source.size()}));
  const Region far = must(hub.register_memory({target.data(), target.size()}));
  introduce(hub, here);
  const UniformPages pages_here{mine.id, 0, 4096, 4096, 256}, pages_there{far.id, 0, 4096, 4096, 256};
  Request request = must(here.write(hub.name(), pages_here, pages_there));
  std::size_t delivered = 0, done = 0, canceled = 0;
  {
    Canceler canceler(request);
    for (int i = 0; i < 500; ++i) {
      const auto limit = std::chrono::steady_clock::now() + patience;
      while (request.post({.notification = "done"}).code == Code::would_block)
        ASSERT_LT(std::chrono::steady_clock::now(), limit) << "after " << done << " and " << canceled;
      canceler.post_comes();
      ++(request.wait(patience).ok() ? done : canceled);
      delivered += must(hub.take_notifications()).size();
    }
    canceler.stop();
  }
  while (delivered < done) {
    must(hub.wait_notification(patience));
    ++delivered;
  }
  EXPECT_GE(send_until_full(here, hub.name(), share / 2), share / 2)
      << "a peer hears of its room when half of it is left";
}

TEST_P(NotificationFlow, a_function_that_is_slower_than_the_senders_costs_no_memory_for_each_message) {
  constexpr int messages = 12'000;
  Agent hub = open("hub"), here = open("here");
  introduce(hub, here);
  std::atomic<int> taken = 0;
  hub.on_notification([&](const Notification&) {
    std::this_thread::sleep_for(std::chrono::microseconds(1));  // and what the system adds
    ++taken;
  });
  const std::size_t before = heap_in_use();
  std::size_t most = before;
  for (int sent = 0; sent < messages;) {
    if (here.notify(hub.name(), "x").ok() && ++sent % 1000 == 0) most = std::max(most, heap_in_use());
  }
  while (taken < messages) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LE(most - before, std::size_t{600} << 10) << "more than the messages that an inbox has room for";
}

TEST_P(NotificationFlow, a_function_that_was_replaced_gets_no_message_any_more) {
  Agent hub = open("hub"), here = open("here");
  introduce(hub, here);
  std::atomic<int> first = 0, second = 0;
  hub.on_notification([&](const Notification&) {
    ++first;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  for (int sent = 0; sent < 100;) sent += here.notify(hub.name(), "x").ok() ? 1 : 0;
  while (first == 0) std::this_thread::yield();
  hub.on_notification([&](const Notification&) { ++second; });
  const int by_then = first;
  while (first + second < 100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LE(first, by_then + 1) << "a call that had begun may end";
}

TEST_P(NotificationFlow, an_agent_that_sends_to_itself_hears_that_its_inbox_is_full) {
  Agent alone = open("alone");
  EXPECT_EQ(send_until_full(alone, alone.name(), 1), 1U);
  (void)alone.take_notifications();
  EXPECT_EQ(send_until_full(alone, alone.name(), 1), 1U);
}

}  // namespace
}  // namespace headrace::test
