// SPDX-License-Identifier: Apache-2.0
// Bytes of a write that still lie in a socket when its peer closes the link: the peer may have filled the
// same memory anew by another path, so they go nowhere.
#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "support/played_socket.hpp"
#include "support/plugin_instance.hpp"
#include "test_backends/on_gpus.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace headrace::tcp {
namespace {

using std::chrono::milliseconds;

/// Stops the thread that has received next, as a stopped process stops, until it may go on.
class Pause {
 public:
  void arm() { set(State::armed); }
  void release() { set(State::released); }
  void wait_until_stopped() { wait_for(State::stopped); }
  void received() {
    {
      const std::scoped_lock lock(mutex_);
      if (state_ != State::armed) return;
      state_ = State::stopped;
    }
    changed_.notify_all();
    wait_for(State::released);
  }

 private:
  enum class State { off, armed, stopped, released };
  void set(State state) {
    {
      const std::scoped_lock lock(mutex_);
      state_ = state;
    }
    changed_.notify_all();
  }
  void wait_for(State state) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return state_ == state; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::off;
};

Pause pause;

class PausingCalls final : public SocketCalls {
 public:
  ssize_t sendmsg(int fd, const msghdr* message, bool more) override {
    return real_.sendmsg(fd, message, more);
  }
  ssize_t recvmsg(int fd, msghdr* message) override {
    const ssize_t n = real_.recvmsg(fd, message);
    if (n > 0) pause.received();
    return n;
  }
  int connect(int fd, const sockaddr* address, socklen_t length) override {
    return real_.connect(fd, address, length);
  }
  int accept(int fd, sockaddr* address, socklen_t* length) override {
    return real_.accept(fd, address, length);
  }

 private:
  SystemCalls real_;
};

struct PausingTcp : test::OnGpus<TcpBackend> {
  static Result<std::unique_ptr<TcpBackend>> open(plugin::Host host, const plugin::CreateArgs& args) {
    return TcpBackend::open(host, args, {.calls = std::make_unique<PausingCalls>()});
  }
};

class LateWrite : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::ranges::fill(memory.bytes(), std::byte{1});
    const auto info = ConnectionInfo::parse(instance.connection_info());
    const auto address = info.value().addresses.front().resolve(TcpAddress::Use::connect).value().front();
    peer = std::make_unique<test::PlayedSocket>(address, 0);
    const auto came = [&] { return instance.host().accepted_links().size() == 1; };
    ASSERT_TRUE(world.until(came)) << world.describe();
    const test::HostLink accepted = instance.host().accepted_links().front();
    link = test::Link(instance, accepted.connection, accepted.token);
  }
  void TearDown() override { pause.release(); }

  /// Ends when the instance's thread stands still behind what it has received.
  void stop_the_instance() const {
    pause.arm();
    peer->say(FrameType::ping);
    pause.wait_until_stopped();
  }
  /// The peer closes the socket, and the instance goes on.
  void close_and_release() {
    peer->close(GetParam());
    std::this_thread::sleep_for(milliseconds(20));
    pause.release();
  }
  [[nodiscard]] std::size_t changed_bytes() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(memory.bytes(), [](std::byte each) { return each != std::byte{1}; }));
  }

  test::World world;
  test::Instance instance{world,
                          plugin::table<PausingTcp>(),
                          {{"listen", "127.0.0.1:0"}, {"threads", "1"}},
                          test::PluginHost::Args{}};
  test::Memory memory{test::Memory::Kind::plain, 200'000, 1};
  test::Region region{instance, memory};
  test::Link link;
  std::unique_ptr<test::PlayedSocket> peer;
};

TEST_P(LateWrite, that_came_whole_before_its_socket_was_closed_is_not_placed) {
  stop_the_instance();
  peer->write_to(region.facts().id, memory.bytes().size(), std::string(memory.bytes().size(), '2'));
  close_and_release();
  ASSERT_TRUE(world.until([&] { return link.lost(); })) << world.describe();
  EXPECT_EQ(changed_bytes(), 0U);
}

TEST_P(LateWrite, of_which_a_part_was_placed_goes_no_further) {
  constexpr std::size_t half = 100'000;
  peer->write_to(region.facts().id, memory.bytes().size(), std::string(half, '2'));
  ASSERT_TRUE(world.until([&] { return changed_bytes() == half; })) << world.describe();
  pause.arm();
  peer->write_more("2");
  pause.wait_until_stopped();
  peer->write_more(std::string(memory.bytes().size() - half - 1, '2'));
  close_and_release();
  ASSERT_TRUE(world.until([&] { return link.lost(); })) << world.describe();
  EXPECT_EQ(changed_bytes(), half + 1);
}

TEST_P(LateWrite, is_placed_while_its_peer_is_there) {
  stop_the_instance();
  peer->write_to(region.facts().id, memory.bytes().size(), std::string(memory.bytes().size(), '2'));
  std::this_thread::sleep_for(milliseconds(20));
  pause.release();
  EXPECT_EQ(peer->hear(FrameType::write_ack).code, 0U);
  EXPECT_EQ(changed_bytes(), memory.bytes().size());
}

INSTANTIATE_TEST_SUITE_P(Ends, LateWrite, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "reset" : "closed"; });

}  // namespace
}  // namespace headrace::tcp
