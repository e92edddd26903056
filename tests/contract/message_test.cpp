// SPDX-License-Identifier: Apache-2.0
// Messages: each once, in order by channel, and those of a request only when its bytes can be read.
#include "contract/fixture.hpp"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <thread>

namespace headrace::contract {
namespace {

class Messages : public Contract {};
HEADRACE_FOR_EACH_BACKEND_THAT(Messages, HEADRACE_REMOTE);

TEST_P(Messages, of_every_length_arrive_whole) {
  const Pair pair = open_pair();
  const std::uint64_t limit = pair.a->info().max_message_bytes;
  std::vector<std::string> sent;
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{7},
                                     std::uint64_t{4096}, std::uint64_t{65'536 + 16}, limit}) {
    std::string bytes(length, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    pair.ab.send(world, HEADRACE_CHANNEL_USER, bytes);
    sent.push_back(std::move(bytes));
  }
  ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == sent.size(); })) << world.describe();
  const auto messages = pair.b->host().messages();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(messages[i].link, pair.ba.token());
    EXPECT_EQ(messages[i].channel, HEADRACE_CHANNEL_USER);
    EXPECT_TRUE(messages[i].bytes == sent[i]) << "the message of " << sent[i].size() << " bytes";
  }
}

TEST_P(Messages, longer_than_the_limit_are_refused_and_disturb_nothing) {
  const Pair pair = open_pair();
  const std::string too_long(pair.a->info().max_message_bytes + 1, 'x');
  EXPECT_EQ(pair.ab.notify(HEADRACE_CHANNEL_USER, too_long).code, Code::invalid_argument);
  const Memory memory(Memory::Kind::plain, 100, 1);
  const Region mine(*pair.a, memory), theirs(*pair.b, memory);
  const Remote remote(pair.ab, theirs.facts());
  Request request(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(mine.handle(), 0, 50, 50),
                  uniform_side(remote.handle(), 50, 50, 50), 1);
  EXPECT_EQ(request.try_post(&too_long).code, Code::invalid_argument);
  EXPECT_EQ(request.ends(), 0U);
  request.post("short enough");
  EXPECT_TRUE(request.wait().status.ok());
  ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == 1; })) << world.describe();
  EXPECT_EQ(pair.b->host().messages()[0].bytes, "short enough");
}

TEST_P(Messages, of_two_channels_and_two_directions_arrive_in_order_under_load) {
  const Pair pair = open_pair();
  constexpr int count = 2000;
  world.start_driver();
  const auto send_all = [&](const Link& link) {
    try {
      for (int i = 0; i < count; ++i)
        link.send(world, static_cast<std::uint32_t>(i % 2),
                  fmt::format("{}{}", i, std::string(static_cast<std::size_t>(i % 500), '.')));
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
  };
  std::thread forth([&] { send_all(pair.ab); }), back([&] { send_all(pair.ba); });
  forth.join();
  back.join();
  for (const auto& [instance, link] :
       {std::pair(pair.b.get(), &pair.ba), std::pair(pair.a.get(), &pair.ab)}) {
    ASSERT_TRUE(world.until([&] { return instance->host().message_count() >= count; })) << world.describe();
    std::map<std::uint32_t, int> next{{0, 0}, {1, 1}};
    for (const HostMessage& message : instance->host().messages()) {
      int& expected = next[message.channel];
      ASSERT_EQ(message.link, link->token());
      ASSERT_EQ(message.bytes.substr(0, message.bytes.find('.')), std::to_string(expected))
          << "on channel " << message.channel;
      ASSERT_EQ(message.bytes.size(),
                std::to_string(expected).size() + static_cast<std::size_t>(expected % 500));
      expected += 2;
    }
    ASSERT_EQ(instance->host().message_count(), static_cast<std::size_t>(count));
  }
  world.stop_driver();
}

TEST_P(Messages, from_many_threads_arrive_once_each_and_in_the_order_of_their_thread) {
  const Pair pair = open_pair();
  constexpr int threads = 4, count = 300;
  world.start_driver();
  std::vector<std::thread> senders;
  for (int t = 0; t < threads; ++t)
    senders.emplace_back([&, t] {
      try {
        for (int i = 0; i < count; ++i)
          pair.ab.send(world, HEADRACE_CHANNEL_USER, fmt::format("{} {}", t, i));
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
    });
  for (std::thread& sender : senders) sender.join();
  EXPECT_TRUE(world.until([&] { return pair.b->host().message_count() == threads * count; }))
      << world.describe();
  world.stop_driver();
  std::map<std::string, int> next;
  for (const HostMessage& message : pair.b->host().messages()) {
    const auto space = message.bytes.find(' ');
    ASSERT_EQ(message.bytes.substr(space + 1), std::to_string(next[message.bytes.substr(0, space)]++));
  }
}

/// Each post writes a number all over the target and says it in its message; the receiver looks at the bytes
/// inside `received`, where they must be there already. The sender waits for the message before it posts
/// again.
TEST_P(Messages, of_a_write_come_once_and_after_its_bytes) {
  const Pair pair = open_pair();
  for (const std::uint64_t page_bytes : {8ULL, 600ULL, 20'000ULL}) {
    constexpr std::uint64_t pages = 30;
    const Memory source(Memory::Kind::plain, page_bytes * pages, 1),
        target(Memory::Kind::shared, page_bytes * 2 * pages, 2, 5);
    const Region mine(*pair.a, source), theirs(*pair.b, target);
    const Remote remote(pair.ab, theirs.facts());
    Request request(*pair.a, HEADRACE_WRITE, &pair.ab, uniform_side(mine.handle(), 0, page_bytes, page_bytes),
                    uniform_side(remote.handle(), 0, 2 * page_bytes, page_bytes), pages);
    std::atomic<std::uint64_t> stale_pages{0};
    pair.b->host().on_received = [&](const HostMessage& message) {
      const auto number = static_cast<std::byte>(std::stoi(message.bytes));
      for (std::uint64_t page = 0; page < pages; ++page)
        if (!all_bytes(target.bytes().subspan(page * 2 * page_bytes, page_bytes), number)) ++stale_pages;
    };
    const std::size_t before = pair.b->host().message_count();
    constexpr int posts = 40;
    for (int i = 1; i <= posts; ++i) {
      set_bytes(source.bytes(), static_cast<std::byte>(i));
      request.post(std::to_string(i));
      const PostEnd end = request.wait();
      ASSERT_TRUE(end.status.ok()) << end.text;
      ASSERT_TRUE(world.until([&] {
        return pair.b->host().message_count() >= before + static_cast<std::size_t>(i);
      })) << world.describe();
      ASSERT_EQ(pair.b->host().messages().back().bytes, std::to_string(i));
    }
    EXPECT_EQ(stale_pages.load(), 0U)
        << "pages that were not there when the message came, of bytes: " << page_bytes;
    EXPECT_EQ(pair.b->host().message_count(), before + posts);
    pair.b->host().on_received = nullptr;
  }
}

TEST_P(Messages, of_a_read_come_to_the_owner_once) {
  const Pair pair = open_pair();
  const Memory target(Memory::Kind::plain, 50'000, 1), source(Memory::Kind::plain, 50'000, 2);
  const Region mine(*pair.a, target), theirs(*pair.b, source);
  const Remote remote(pair.ab, theirs.facts());
  Request request(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(mine.handle(), 0, 1000, 1000),
                  uniform_side(remote.handle(), 0, 1000, 1000), 50);
  for (std::size_t i = 1; i <= 100; ++i) {
    request.post(std::to_string(i));
    ASSERT_TRUE(request.wait().status.ok());
    ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() >= i; })) << world.describe();
    ASSERT_EQ(pair.b->host().messages().back().bytes, std::to_string(i));
  }
  EXPECT_TRUE(same_bytes(source.bytes(), target.bytes()));
  EXPECT_EQ(pair.b->host().message_count(), 100U);
}

TEST_P(Messages, of_requests_and_on_their_own_keep_the_order_in_which_they_were_sent) {
  const Pair pair = open_pair();
  const Memory source(Memory::Kind::plain, 300'000, 1), target(Memory::Kind::plain, 300'000, 2);
  const Region mine(*pair.a, source), theirs(*pair.b, target);
  const Remote remote(pair.ab, theirs.facts());
  std::vector<std::unique_ptr<Request>> requests;
  for (std::uint64_t i = 0; i < 6; ++i)
    requests.push_back(std::make_unique<Request>(
        *pair.a, HEADRACE_WRITE, &pair.ab, uniform_side(mine.handle(), i * 50'000, 500 * (i + 1), 500),
        uniform_side(remote.handle(), i * 50'000, 500 * (i + 1), 500), 100 / (i + 1)));
  int sent = 0;
  for (int round = 0; round < 50; ++round) {
    for (const auto& request : requests) {
      request->post(std::to_string(sent++));
      if (sent % 3 != 0) pair.ab.send(world, HEADRACE_CHANNEL_USER, std::to_string(sent++));
    }
    for (const auto& request : requests) ASSERT_TRUE(request->wait().status.ok());
  }
  ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() >= static_cast<std::size_t>(sent); }))
      << world.describe();
  const auto messages = pair.b->host().messages();
  ASSERT_EQ(messages.size(), static_cast<std::size_t>(sent));
  for (int i = 0; i < sent; ++i) ASSERT_EQ(messages[static_cast<std::size_t>(i)].bytes, std::to_string(i));
}

TEST_P(Messages, that_a_peer_does_not_take_are_held_back_with_would_block_and_not_lost) {
  // No progress at the receiving side; threads of its instance stay in the host function.
  const bool inside_calls = GetParam().carried_out == CarriedOut::inside_calls;
  std::atomic<bool> takes{inside_calls};
  const Pair pair = open_pair();
  const std::string bytes(20'000, 'm');
  pair.b->host().on_received = [&](const HostMessage&) { takes.wait(false); };
  std::size_t sent = 0;
  Status status;
  for (; sent < 2000; ++sent) {
    status = pair.ab.notify(HEADRACE_CHANNEL_USER, bytes);
    if (!status.ok()) break;
  }
  takes = true;
  takes.notify_all();
  if (inside_calls) {
    EXPECT_TRUE(status.ok()) << "each was received before `notify` returned";
  } else if (GetParam().carried_out != CarriedOut::unknown || !status.ok()) {
    EXPECT_EQ(status.code, Code::would_block) << sent << " messages";
  }
  ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == sent; })) << world.describe();
  pair.ab.send(world, HEADRACE_CHANNEL_USER, "once more");
  ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == sent + 1; })) << world.describe();
  EXPECT_EQ(pair.b->host().messages().back().bytes, "once more");
}

TEST_P(Messages, that_have_left_arrive_though_their_sender_closes_the_link_at_once) {
  Pair pair = open_pair();
  const std::string bytes(20'000, 'm');
  std::size_t sent = 0;
  while (sent < 500 && pair.ab.notify(HEADRACE_CHANNEL_USER, bytes).ok()) ++sent;
  EXPECT_GT(sent, 0U);
  {
    const Memory memory(Memory::Kind::plain, 100, 1);
    const Region mine(*pair.a, memory), theirs(*pair.b, memory);
    const Remote remote(pair.ab, theirs.facts());
    Request request(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(mine.handle(), 0, 50, 50),
                    uniform_side(remote.handle(), 50, 50, 50), 1);
    for (; sent < 1000 && request.try_post(&bytes).ok(); ++sent) ASSERT_TRUE(request.wait().status.ok());
  }
  ASSERT_TRUE(world.until([&] { return pair.ab.unsent() == 0; })) << world.describe();
  pair.ab.disconnect();
  world.start_driver();  // for the peer, while the instance waits for its last words to be taken
  pair.a->destroy();
  world.stop_driver();
  ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == sent; })) << world.describe();
}

}  // namespace
}  // namespace headrace::contract
