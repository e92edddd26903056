// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.hpp"

#include "engine/send_credit.hpp"
#include "tests/support/heap_in_use.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>

namespace headrace::engine {
namespace {

constexpr std::uint64_t link = 7;

/// A message of peer "a" over `link`, with no post.
Inbox::Receipt put(Inbox& inbox, const std::string& payload, const std::string& peer = "a",
                   std::uint64_t over = link) {
  return inbox.put(over, {}, payload.size() + 16, {peer, payload});
}

Inbox::Receipt put_of_post(Inbox& inbox, const MessageKey& key, const std::string& payload) {
  return inbox.put(link, key, payload.size() + 16, {"a", payload});
}

std::vector<std::string> payloads(const Inbox::Taken& taken) {
  std::vector<std::string> all;
  for (const Notification& n : taken.notifications) all.push_back(n.payload);
  return all;
}

std::optional<std::string> one(Inbox& inbox, const NotificationFilter& filter) {
  std::optional<Notification> taken;
  (void)inbox.take_one(filter, taken);
  return taken ? std::optional(taken->payload) : std::nullopt;
}

bool readable(int fd) {
  pollfd poll{fd, POLLIN, 0};
  return ::poll(&poll, 1, 0) == 1;
}

// ------------------------------------------------------------------ duplicates

TEST(Inbox, a_notification_that_arrives_over_two_paths_is_delivered_once) {
  Inbox inbox({});
  for (const MessageKey& key : {MessageKey{5, 1, 1}, {5, 1, 1}, {5, 1, 2}, {6, 1, 1}})
    (void)put_of_post(inbox, key, "x");
  EXPECT_EQ(inbox.take({}).notifications.size(), 3U) << "another life has its own numbers";
}

TEST(Inbox, what_one_life_claims_does_not_make_another_forget) {
  Inbox inbox({});
  (void)put_of_post(inbox, {5, 1, 1}, "x");
  for (std::uint64_t request = 1; request < 40'000; ++request)
    (void)put_of_post(inbox, {6, request, UINT64_MAX}, "");
  (void)inbox.take({});
  (void)put_of_post(inbox, {5, 1, 1}, "x");
  (void)put_of_post(inbox, {5, 1, 2}, "y");
  EXPECT_EQ(payloads(inbox.take({})), std::vector<std::string>{"y"}) << "the first is known still";
}

TEST(Inbox, notifications_without_a_request_are_never_taken_for_duplicates) {
  Inbox inbox({});
  (void)put(inbox, "x");
  (void)put(inbox, "x");
  EXPECT_EQ(inbox.take({}).notifications.size(), 2U);
}

// ------------------------------------------------------------------ filters

TEST(Inbox, a_filter_takes_by_peer_and_prefix_and_keeps_the_order_of_the_rest) {
  Inbox inbox({});
  (void)put(inbox, "k1", "a", 1);
  (void)put(inbox, "k2", "b", 2);
  (void)put(inbox, "other", "a", 1);
  (void)put(inbox, "k0", "a", 3);
  EXPECT_EQ(one(inbox, {"a", "k"}), "k1");
  EXPECT_EQ(one(inbox, {"a", "k"}), "k0") << "over another link of that peer";
  EXPECT_EQ(one(inbox, {"a", "k"}), std::nullopt);
  EXPECT_EQ(one(inbox, {"nobody", ""}), std::nullopt);
  EXPECT_EQ(payloads(inbox.take({})), (std::vector<std::string>{"k2", "other"}));
}

TEST(Inbox, every_filter_takes_what_a_look_at_all_messages_takes) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  Inbox inbox({});
  std::vector<Notification> all;
  const auto text = [&](const char* letters, std::size_t longest) {
    std::string made(random() % (longest + 1), ' ');
    for (char& c : made) c = letters[random() % 2];
    return made;
  };
  for (int step = 0; step < 5000; ++step) {
    for (std::size_t n = random() % 4; n > 0; --n) {
      const std::uint64_t over = random() % 5;
      all.push_back({std::string(1, static_cast<char>('a' + over % 3)), text("xy", 4)});
      (void)put(inbox, all.back().payload, all.back().peer, over + 1);
    }
    const NotificationFilter filter{random() % 2 == 0 ? "" : text("ab", 1), text("xy", 3)};
    const std::size_t most = random() % 3 == 0 ? SIZE_MAX : 1;
    std::vector<std::string> expected;
    std::erase_if(all, [&](const Notification& n) {
      const bool fits =
          (filter.peer.empty() || n.peer == filter.peer) && n.payload.starts_with(filter.prefix);
      if (!fits || expected.size() == most) return false;
      expected.push_back(n.payload);
      return true;
    });
    std::vector<std::string> found;
    if (most == 1) {
      if (auto found_one = one(inbox, filter)) found.push_back(std::move(*found_one));
    } else {
      found = payloads(inbox.take(filter));
    }
    ASSERT_EQ(found, expected) << "step " << step;
    ASSERT_EQ(inbox.empty(), all.empty());
  }
}

/// The median time of one miss while so many wait.
double miss_seconds(int waiting) {
  Inbox inbox({std::size_t{1} << 24, std::size_t{1} << 40});
  for (int i = 0; i < waiting; ++i) (void)put(inbox, "key " + std::to_string(i));
  std::vector<double> times;
  for (int i = 0; i < 101; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(one(inbox, {"", "none" + std::to_string(i)}), std::nullopt);
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::nth_element(times, times.begin() + 50);
  return times[50];
}

TEST(Inbox, a_filter_that_finds_nothing_does_not_look_at_all_that_waits) {
  EXPECT_LT(miss_seconds(100'000), 30 * miss_seconds(100)) << "a scan takes a thousand times as long";
}

// ------------------------------------------------------------------ descriptors

TEST(Inbox, the_descriptor_is_readable_while_a_notification_waits) {
  Inbox inbox({});
  (void)put(inbox, "1");
  const int fd = *inbox.descriptor();
  EXPECT_TRUE(readable(fd));
  (void)inbox.take({});
  EXPECT_FALSE(readable(fd));
  (void)put(inbox, "2");
  EXPECT_TRUE(readable(fd));
}

TEST(Inbox, a_watch_is_signaled_for_what_passes_its_filter_alone) {
  Inbox inbox({});
  (void)put(inbox, "other");
  const auto watch = *inbox.watch({"a", "k"});
  EXPECT_FALSE(readable(watch->bell.fd()));
  (void)put(inbox, "other");
  (void)put(inbox, "k", "b", 9);
  EXPECT_FALSE(readable(watch->bell.fd()));
  (void)put(inbox, "key");
  EXPECT_TRUE(readable(watch->bell.fd()));
  EXPECT_TRUE(readable((*inbox.watch({"", "k"}))->bell.fd())) << "for what waits already";
  watch->bell.drain();
  inbox.close();
  EXPECT_TRUE(readable(watch->bell.fd()));
}

TEST(Inbox, its_descriptor_stays_readable_after_the_close) {
  Inbox inbox({});
  const int fd = *inbox.descriptor();
  (void)put(inbox, "x");
  inbox.close();
  (void)inbox.take({});
  EXPECT_TRUE(readable(fd)) << "one that was there before";
  Inbox other({});
  other.close();
  EXPECT_TRUE(readable(*other.descriptor()));
}

TEST(Inbox, watches_that_have_ended_take_no_memory_although_no_message_comes) {
  Inbox inbox({});
  const auto kept = *inbox.watch({});
  const auto watch_often = [&] {
    for (int i = 0; i < 10'000; ++i) (void)*inbox.watch({"a", "k"});
  };
  watch_often();
  const std::size_t before = test::heap_in_use();
  watch_often();
  EXPECT_LT(test::heap_in_use(), before + 10'000) << "about 110 bytes each, if they are kept";
  (void)put(inbox, "x");
  EXPECT_TRUE(readable(kept->bell.fd()));
}

// ------------------------------------------------------------------ credit

/// A peer that keeps to its credit, with as many messages as go. Returns how many.
std::size_t send_all(Inbox& inbox, SendCredit& credit, std::size_t most, std::size_t bytes = 20) {
  std::size_t sent = 0;
  for (; sent < most && credit.take(bytes); ++sent) {
    const Inbox::Receipt receipt = inbox.put(link, {}, bytes, {"a", std::string(bytes - 16, 'x')});
    EXPECT_FALSE(receipt.flooded);
    if (receipt.due) credit.raise(receipt.due->credit);
  }
  return sent;
}

TEST(Inbox, a_peer_sends_its_share_and_again_as_much_as_is_taken) {
  constexpr std::size_t share = 3000;
  Inbox inbox({share, std::size_t{1} << 30});
  SendCredit credit;
  EXPECT_EQ(send_all(inbox, credit, 10'000), share);
  constexpr std::size_t taken = 2000;
  for (std::size_t i = 0; i < taken; ++i) {
    std::optional<Notification> message;
    if (const auto due = inbox.take_one({}, message)) credit.raise(due->credit);
  }
  const std::size_t sent = send_all(inbox, credit, 10'000);
  EXPECT_GE(sent, taken / 2) << "it hears when less than half is left";
  EXPECT_LE(sent, taken);
  for (const auto& due : inbox.take({}).dues) credit.raise(due.credit);
  EXPECT_EQ(send_all(inbox, credit, 10'000), share);
}

TEST(Inbox, a_peer_with_the_longest_messages_never_waits_for_an_empty_inbox) {
  Inbox inbox({1, 1});
  SendCredit credit;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_GT(send_all(inbox, credit, 1, wire::user_payload_bytes + 16), 0U) << i;
    for (const auto& due : inbox.take({}).dues) credit.raise(due.credit);
  }
}

TEST(Inbox, however_small_it_is_each_link_has_room_for_the_first_credit) {
  Inbox inbox({1, 1});
  SendCredit credit;
  EXPECT_EQ(send_all(inbox, credit, 5000), wire::first_credit.messages);
}

TEST(Inbox, links_that_send_have_equal_shares) {
  Inbox inbox({8000, std::size_t{1} << 30});
  for (std::uint64_t over = link + 1; over < link + 4; ++over) (void)put(inbox, "hello", "b", over);
  SendCredit credit;
  EXPECT_EQ(send_all(inbox, credit, 5000), 2000U);
}

TEST(Inbox, a_link_that_sends_little_is_promised_little) {
  Inbox inbox({});
  std::uint64_t promised = wire::first_credit.messages;
  for (std::uint64_t came = 1; came <= 10'000; ++came) {
    if (const auto due = put(inbox, "x").due) promised = due->credit.messages;
    ASSERT_LE(promised, came + std::max<std::uint64_t>(came, wire::first_credit.messages));
    ASSERT_GT(promised, came) << "it need not wait";
  }
}

TEST(Inbox, a_link_that_nobody_reads_takes_no_room_of_another) {
  Inbox inbox({1, 1});
  SendCredit credit;
  (void)send_all(inbox, credit, 5000);
  for (int i = 0; i < 1024; ++i) EXPECT_FALSE(put(inbox, "hello", "b", link + 1).flooded);
}

TEST(Inbox, a_peer_that_sends_far_beyond_its_credit_is_told_from_one_that_keeps_to_it) {
  Inbox inbox({4000, std::size_t{1} << 30});
  int came = 0;
  while (!put(inbox, "x").flooded) ++came;
  EXPECT_EQ(came, 5000);
  Inbox bytes({1 << 20, std::size_t{8} << 20});
  came = 0;
  while (!put(bytes, std::string(65536, 'x')).flooded) ++came;
  EXPECT_EQ(came, (std::size_t{10} << 20) / (65536 + 16));
}

TEST(Inbox, a_peer_that_connects_again_and_again_has_no_more_room_for_it) {
  Inbox inbox({4000, std::size_t{1} << 30});
  std::size_t came = 0;
  std::uint64_t over = link;
  for (bool flooded = false; !flooded && came < 100'000; inbox.link_gone(over++))
    for (int i = 0; i < 500 && !flooded; ++i) {
      flooded = put(inbox, "x", "a", over).flooded;
      came += flooded ? 0 : 1;
    }
  EXPECT_EQ(came, 5000U);
  EXPECT_FALSE(put(inbox, "x", "b", over).flooded) << "others are not concerned";
}

TEST(Inbox, messages_that_came_twice_or_mean_nothing_give_their_room_back) {
  Inbox inbox({});
  SendCredit credit;
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(credit.take(20));
    const auto receipt = i % 2 == 0 ? put_of_post(inbox, {5, 1, 1}, "") : inbox.put_nothing(link, "a", 20);
    ASSERT_FALSE(receipt.flooded);
    if (receipt.due) credit.raise(receipt.due->credit);
  }
}

TEST(Inbox, a_link_that_is_gone_is_forgotten_when_its_messages_are_taken) {
  Inbox inbox({5000, std::size_t{1} << 30});
  for (std::uint64_t over = 1; over <= 100; ++over) {
    (void)put(inbox, "x", "a", over);
    inbox.link_gone(over);
  }
  EXPECT_EQ(inbox.take({}).notifications.size(), 100U);
  SendCredit credit;
  EXPECT_EQ(send_all(inbox, credit, 10'000), 5000U) << "it has the whole inbox";
  inbox.link_gone(link);
  const auto taken = inbox.take({});
  EXPECT_EQ(taken.notifications.size(), 5000U);
  EXPECT_TRUE(taken.dues.empty()) << "nobody is there to be told";
}

TEST(Inbox, this_agent_may_send_to_itself_while_there_is_room) {
  Inbox inbox({2, 1000});
  EXPECT_TRUE(inbox.has_room());
  (void)put(inbox, "1", "me", Inbox::self);
  (void)put(inbox, "2", "me", Inbox::self);
  EXPECT_FALSE(inbox.has_room());
  (void)one(inbox, {});
  EXPECT_TRUE(inbox.has_room());
}

}  // namespace
}  // namespace headrace::engine
