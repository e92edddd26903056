// SPDX-License-Identifier: Apache-2.0
// How a link ends when its sockets do not end together: against a peer that is played byte by byte.
#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "support/played_socket.hpp"
#include "support/plugin_instance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace headrace::tcp {
namespace {

using ::testing::HasSubstr;

class Goodbye : public ::testing::Test {
 protected:
  void open(const test::Settings& settings) {
    instance = std::make_unique<test::Instance>(world, plugin::table<TcpBackend>(), settings,
                                                test::PluginHost::Args{});
    const auto info = ConnectionInfo::parse(instance->connection_info());
    const auto address = info.value().addresses.front().resolve(TcpAddress::Use::connect).value().front();
    first = std::make_unique<test::PlayedSocket>(address, 0);
    second = std::make_unique<test::PlayedSocket>(address, 1);
    const auto came = [&] { return instance->host().accepted_links().size() == 1; };
    if (!world.until(came)) throw std::runtime_error("no link: " + world.describe());
    const test::HostLink accepted = instance->host().accepted_links().front();
    link = test::Link(*instance, accepted.connection, accepted.token);
  }

  /// Returns when the instance, whose sockets one thread looks after, has taken in all that was said before.
  void settle() const {
    for (int i = 0; i < 2; ++i) {  // the thread may have looked at the first socket before the second
      first->say(FrameType::ping);
      first->hear(FrameType::pong);
    }
  }
  [[nodiscard]] std::string lost_text() const { return instance->host().link(link.token())->lost_text; }

  test::World world;
  std::unique_ptr<test::Instance> instance;
  std::unique_ptr<test::PlayedSocket> first, second;
  test::Link link;
};

const test::Settings one_thread{{"listen", "127.0.0.1:0"}, {"threads", "1"}};

test::RegionFacts region_of_peer(std::uint64_t length) {
  test::RegionFacts facts;
  facts.id = 5;
  facts.length = length;
  return facts;
}

test::Settings with_heartbeat(test::Settings settings) {
  settings["heartbeat_interval"] = "100ms";
  settings["heartbeat_timeout"] = "3s";
  return settings;
}

TEST_F(Goodbye, of_another_socket_does_not_cut_off_what_the_first_still_says) {
  open(one_thread);
  second->say(FrameType::goodbye);
  settle();
  EXPECT_FALSE(link.lost());
  first->say(FrameType::message, "the last message");
  first->say(FrameType::goodbye);
  ASSERT_TRUE(world.until([&] { return link.lost(); })) << world.describe();
  ASSERT_EQ(instance->host().message_count(), 1U);
  EXPECT_EQ(instance->host().messages()[0].bytes, "the last message");
  EXPECT_THAT(lost_text(), HasSubstr("said goodbye"));
}

TEST_F(Goodbye, of_another_socket_leaves_new_work_to_the_first) {
  open(one_thread);
  second->say(FrameType::goodbye);
  settle();
  const test::Memory memory(test::Memory::Kind::plain, 4000, 1);
  const test::Region mine(*instance, memory);
  const test::Remote theirs(link, region_of_peer(4000));
  test::Request request(*instance, HEADRACE_WRITE, &link, test::uniform_side(mine.handle(), 0, 400, 400),
                        test::uniform_side(theirs.handle(), 0, 400, 400), 10);
  for (int i = 0; i < 4; ++i) {  // small: each is given to one socket, in turn
    request.post();
    first->acknowledge(first->hear(FrameType::write));
    EXPECT_TRUE(request.wait().status.ok());
  }
}

TEST_F(Goodbye, of_another_socket_alone_ends_the_link_and_its_posts_within_the_heartbeat) {
  open(with_heartbeat(one_thread));
  const test::Memory memory(test::Memory::Kind::plain, 8 << 20, 1);
  const test::Region mine(*instance, memory);
  const test::Remote theirs(link, region_of_peer(8 << 20));
  test::Request request(*instance, HEADRACE_WRITE, &link,
                        test::uniform_side(mine.handle(), 0, 1 << 20, 1 << 20),
                        test::uniform_side(theirs.handle(), 0, 1 << 20, 1 << 20), 8);
  request.post();
  second->hear(FrameType::write);  // chunks of it are on their way over both sockets
  second->say(FrameType::goodbye);
  // The first socket is in the best of health.
  try {
    while (!link.lost()) {
      const FrameHeader heard = first->hear();
      if (heard.type == FrameType::ping) first->say(FrameType::pong);
    }
  } catch (const std::runtime_error&) {  // closed by the instance, or so it must be
  }
  ASSERT_TRUE(world.until([&] { return link.lost(); })) << world.describe();
  EXPECT_THAT(lost_text(), HasSubstr("socket 1 was closed without the others"));
  EXPECT_EQ(request.wait().status.code, Code::peer_lost);
}

TEST_F(Goodbye, is_not_needed_for_the_end_of_the_first_socket_to_end_the_link) {
  open(one_thread);
  first.reset();
  ASSERT_TRUE(world.until([&] { return link.lost(); })) << world.describe();
  EXPECT_THAT(lost_text(), HasSubstr("socket 0"));
}

TEST_F(Goodbye, answers_a_socket_that_is_not_wanted_and_the_link_goes_on) {
  open(one_thread);
  const auto info = ConnectionInfo::parse(instance->connection_info());
  const test::PlayedSocket twice(
      info.value().addresses.front().resolve(TcpAddress::Use::connect).value().front(), 1);
  EXPECT_EQ(twice.hear().type, FrameType::goodbye);
  settle();
  EXPECT_FALSE(link.lost());
}

TEST_F(Goodbye, comes_behind_messages_for_which_the_socket_has_no_room_yet) {
  test::Settings small = one_thread;
  small["socket_buffer"] = "64KiB";
  open(small);
  std::size_t sent = 0;
  while (link.notify(HEADRACE_CHANNEL_USER, std::string(60'000, 'm')).ok()) ++sent;
  ASSERT_GT(sent, 10U);
  link.disconnect();
  std::jthread ending([&] { instance->destroy(); });
  std::size_t heard = 0;
  for (FrameHeader header = first->hear(); header.type != FrameType::goodbye; header = first->hear())
    heard += header.type == FrameType::message ? 1 : 0;
  EXPECT_EQ(heard, sent);
  first.reset();  // a peer that has heard the goodbye closes
  second.reset();
}

/// Other programs may take the CPU away from one attempt, hardly from three.
TEST_F(Goodbye, waits_a_second_for_a_peer_that_does_not_read) {
  constexpr auto bound = std::chrono::seconds(3);
  std::chrono::steady_clock::duration took = bound;
  for (int attempt = 0; attempt < 3 && took >= bound; ++attempt) {
    open(one_thread);
    while (link.notify(HEADRACE_CHANNEL_USER, std::string(60'000, 'm')).ok()) {
    }
    link.disconnect();
    const auto begin = std::chrono::steady_clock::now();
    instance->destroy();
    took = std::chrono::steady_clock::now() - begin;
  }
  EXPECT_LT(took, bound);
}

}  // namespace
}  // namespace headrace::tcp
