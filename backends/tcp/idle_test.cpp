// SPDX-License-Identifier: Apache-2.0
// What an idle link costs and when it is lost: against a peer that is played byte by byte, and the threads
// that look after links.
#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "backends/tcp/context.hpp"
#include "backends/tcp/link.hpp"
#include "backends/tcp/socket_setup.hpp"
#include "support/played_socket.hpp"
#include "support/plugin_host.hpp"
#include "support/plugin_instance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <netinet/tcp.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace headrace::tcp {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class IdleLink : public ::testing::Test {
 protected:
  IdleLink()
      : instance(world, plugin::table<TcpBackend>(),
                 {{"listen", "127.0.0.1:0"},
                  {"threads", "1"},
                  {"heartbeat_interval", "50ms"},
                  {"heartbeat_timeout", "2s"}},
                 test::PluginHost::Args{}) {
    const auto info = ConnectionInfo::parse(instance.connection_info());
    const auto address = info.value().addresses.front().resolve(TcpAddress::Use::connect).value().front();
    first = std::make_unique<test::PlayedSocket>(address, 0);
    second = std::make_unique<test::PlayedSocket>(address, 1);
    const auto came = [&] { return instance.host().accepted_links().size() == 1; };
    if (!world.until(came)) throw std::runtime_error("no link: " + world.describe());
    const test::HostLink accepted = instance.host().accepted_links().front();
    link = test::Link(instance, accepted.connection, accepted.token);
  }

  void answer_pings(int count) const {
    for (int i = 0; i < count; ++i) {
      first->hear(FrameType::ping);
      first->say(FrameType::pong);
    }
  }
  [[nodiscard]] std::string lost_text() { return instance.host().link(link.token())->lost_text; }

  test::World world;
  test::Instance instance;
  std::unique_ptr<test::PlayedSocket> first, second;
  test::Link link;
};

TEST_F(IdleLink, has_pings_on_its_first_socket_alone) {
  answer_pings(10);
  second->say(FrameType::ping);
  EXPECT_EQ(second->hear().type, FrameType::pong) << "the second socket carries something of its own";
  EXPECT_FALSE(link.lost());
}

TEST_F(IdleLink, is_lost_when_its_first_socket_falls_silent) {
  answer_pings(3);
  ASSERT_TRUE(world.until([&] { return link.lost(); })) << world.describe();
  EXPECT_THAT(lost_text(), HasSubstr("socket 0 was silent"));
}

TEST_F(IdleLink, is_lost_when_a_socket_that_has_rested_does_not_answer_a_post) {
  answer_pings(10);
  const test::Memory memory(test::Memory::Kind::plain, 8 << 20, 1);
  const test::Region mine(instance, memory);
  test::RegionFacts facts;
  facts.id = 5;
  facts.length = 8 << 20;
  const test::Remote theirs(link, facts);
  test::Request request(instance, HEADRACE_WRITE, &link,
                        test::uniform_side(mine.handle(), 0, 1 << 20, 1 << 20),
                        test::uniform_side(theirs.handle(), 0, 1 << 20, 1 << 20), 8);
  request.post();
  second->hear(FrameType::write);
  second->hear(FrameType::ping);
  try {
    while (!link.lost())
      if (first->hear().type == FrameType::ping) first->say(FrameType::pong);
  } catch (const std::runtime_error&) {  // closed by the instance, or so it must be
  }
  ASSERT_TRUE(world.until([&] { return link.lost(); })) << world.describe();
  EXPECT_THAT(lost_text(), HasSubstr("socket 1 was silent"));
  EXPECT_EQ(request.wait().status.code, Code::peer_lost);
}

TEST(IdleLinks, are_pinged_first_by_the_side_that_has_accepted_them_or_that_has_many) {
  test::PluginHost host{{}};
  std::vector<headrace_setting_v1> defaults;
  for (const headrace_option_v1& row : Settings::rows()) defaults.push_back({row.name, row.default_value});
  Context context(plugin::Host(host.table()), Settings::read({defaults, ""}).value(),
                  std::make_unique<SystemCalls>(), gpu::GpuSource::installed(), false);
  const auto made = [&](std::uint64_t token) {
    return std::make_shared<tcp::Link>(context, "b", 7, token, token, 1);
  };
  const auto interval = context.settings.heartbeat_interval;
  const auto accepted = made(0);
  EXPECT_EQ(accepted->ping_after(), interval);
  std::vector<std::shared_ptr<tcp::Link>> connecting{made(1)};
  EXPECT_GT(connecting.front()->ping_after(), interval);
  while (connecting.size() < 20) connecting.push_back(made(1 + connecting.size()));
  // The peer, which has accepted it, waits for an interval at least.
  EXPECT_LT(connecting.back()->ping_after(), interval);
  EXPECT_EQ(accepted->ping_after(), interval);
  connecting.resize(1);
  EXPECT_GT(connecting.front()->ping_after(), interval);
}

TEST(IdleSocket, has_a_keepalive_within_the_time_of_the_heartbeat) {
  Settings settings;
  settings.heartbeat_interval = 2s;
  settings.heartbeat_timeout = 5s;
  const auto address = TcpAddress::parse("127.0.0.1:1").value().resolve(TcpAddress::Use::connect).value();
  const UniqueFd fd = open_socket(address.front(), settings).value();
  const auto option = [&](int level, int name) {
    int value = 0;
    socklen_t length = sizeof value;
    EXPECT_EQ(::getsockopt(fd.get(), level, name, &value, &length), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 2);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT), 3);
}

/// Counts the calls at its times, which are `interval` apart.
class Counted final : public Watched {
 public:
  explicit Counted(std::chrono::nanoseconds interval) : interval_(interval) {}
  void on_ready(std::uint32_t /*events*/) override {}
  std::uint64_t on_time(std::uint64_t now_ns) override {
    ++calls;
    return now_ns + static_cast<std::uint64_t>(interval_.count());
  }
  std::atomic<int> calls = 0;

 private:
  const std::chrono::nanoseconds interval_;
};

TEST(IdleThread, calls_what_is_due_and_nothing_else) {
  const auto io = IoThread::open(
                      0, [] { return headrace::now_ns(); }, 0ns)
                      .value();
  std::vector<std::shared_ptr<Counted>> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(std::make_shared<Counted>(1h));
    ASSERT_TRUE(io->watch(idle.back(), -1, 0).ok());
  }
  const auto busy = std::make_shared<Counted>(1ms);
  ASSERT_TRUE(io->watch(busy, -1, 0).ok());
  const Deadline give_up = Deadline::after(30s);
  while (busy->calls < 20 && !give_up.expired()) std::this_thread::yield();
  for (const auto& one : idle) EXPECT_EQ(one->calls, 1) << "once, when it was new";
  io->stop();
}

/// Its time moves on with what happens to it.
class Postponed final : public Watched {
 public:
  void on_ready(std::uint32_t /*events*/) override {}
  std::uint64_t on_time(std::uint64_t now_ns) override {
    ++calls;
    began_ns = began_ns.load() != 0 ? began_ns.load() : now_ns;
    return began_ns + 100'000'000;
  }
  [[nodiscard]] std::uint64_t due_ns() const override { return began_ns + 3'600'000'000'000; }
  std::atomic<int> calls = 0;
  std::atomic<std::uint64_t> began_ns = 0;
};

TEST(IdleThread, does_not_wake_for_a_time_that_has_moved_on) {
  const auto io = IoThread::open(
                      0, [] { return headrace::now_ns(); }, 0ns)
                      .value();
  const auto object = std::make_shared<Postponed>();
  ASSERT_TRUE(io->watch(object, -1, 0).ok());
  const Deadline give_up = Deadline::after(60s);
  while (object->calls < 1 && !give_up.expired()) std::this_thread::yield();
  std::this_thread::sleep_for(300ms);  // time for a wake-up that must not come
  EXPECT_EQ(object->calls, 1);
  io->hurry(object);
  while (object->calls < 2 && !give_up.expired()) std::this_thread::yield();
  EXPECT_EQ(object->calls, 2);
  io->stop();
}

}  // namespace
}  // namespace headrace::tcp
