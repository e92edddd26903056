// SPDX-License-Identifier: Apache-2.0
// Who asks for the bytes of a large read, and who sends those of a large write.
#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "support/played_socket.hpp"
#include "support/plugin_instance.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace headrace::tcp {
namespace {

/// Of each socket the threads that sent requests over it, in order.
class Senders {
 public:
  void sent(int fd, const msghdr& message) {
    FrameHeader header;
    if (message.msg_iovlen == 0 || message.msg_iov[0].iov_len < sizeof header) return;
    std::memcpy(&header, message.msg_iov[0].iov_base, sizeof header);
    if (header.type != FrameType::read && header.type != FrameType::write) return;
    const std::scoped_lock lock(mutex_);
    by_socket_[fd].push_back(std::this_thread::get_id());
  }
  [[nodiscard]] std::vector<std::thread::id> first() const {
    const std::scoped_lock lock(mutex_);
    std::vector<std::thread::id> found;
    for (const auto& [fd, threads] : by_socket_) found.push_back(threads.front());
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, std::vector<std::thread::id>> by_socket_;
};

/// Holds the I/O threads where they are about to receive: then none of them sends, or is about to.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    if (!closed_) return;
    ++held_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !closed_; });
  }
  void close() {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  void open() {
    const std::scoped_lock lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }
  [[nodiscard]] bool holds(int threads) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return held_ == threads; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int held_ = 0;
};

class NotedCalls final : public SocketCalls {
 public:
  NotedCalls(Senders& senders, Gate& gate) : senders_(senders), gate_(gate) {}
  ssize_t sendmsg(int fd, const msghdr* message, bool more) override {
    senders_.sent(fd, *message);
    return system_.sendmsg(fd, message, more);
  }
  ssize_t recvmsg(int fd, msghdr* message) override {
    gate_.pass();
    return system_.recvmsg(fd, message);
  }
  int connect(int fd, const sockaddr* address, socklen_t length) override {
    return system_.connect(fd, address, length);
  }
  int accept(int fd, sockaddr* address, socklen_t* length) override {
    return system_.accept(fd, address, length);
  }

 private:
  Senders& senders_;
  Gate& gate_;
  SystemCalls system_;
};

Senders* senders = nullptr;
Gate* gate = nullptr;

/// The backend over calls that are noted.
struct NotedBackend {
  static constexpr const char* name = TcpBackend::name;
  static constexpr const char* version = TcpBackend::version;
  static constexpr std::uint32_t memory_kinds = TcpBackend::memory_kinds;
  static constexpr bool maps = TcpBackend::maps;
  static std::span<const headrace_option_v1> options() { return TcpBackend::options(); }
  static Result<std::unique_ptr<TcpBackend>> open(plugin::Host host, const plugin::CreateArgs& args) {
    return TcpBackend::open(host, args, {.calls = std::make_unique<NotedCalls>(*senders, *gate)});
  }
};

/// Posts a request of 8 MiB over two sockets, of which neither has anything to do, and hears of it over both.
std::vector<std::thread::id> who_begins(headrace_op_v1 op) {
  constexpr std::uint64_t page = 65536, pages = 128;
  Senders noted;
  senders = &noted;
  Gate receiving;
  gate = &receiving;
  test::World world;
  test::Instance instance(world, plugin::table<NotedBackend>(),
                          {{"listen", "127.0.0.1:0"},
                           {"threads", "2"},
                           {"heartbeat_interval", "60s"},
                           {"heartbeat_timeout", "100s"}},
                          test::PluginHost::Args{});
  const auto info = ConnectionInfo::parse(instance.connection_info());
  const SocketAddress to = info.value().addresses.front().resolve(TcpAddress::Use::connect).value().front();
  const test::PlayedSocket first(to, 0);
  EXPECT_TRUE(world.until([&] { return instance.host().accepted_links().size() == 1; }));
  const auto accepted = instance.host().accepted_links().front();
  test::Link link(instance, accepted.connection, accepted.token);
  const test::PlayedSocket second(to, 1);
  for (const test::PlayedSocket* socket : {&first, &second}) {
    socket->say(FrameType::ping);
    (void)socket->hear(FrameType::pong);
  }
  receiving.close();
  first.say(FrameType::pong);  // which has no answer
  second.say(FrameType::pong);
  EXPECT_TRUE(receiving.holds(2)) << "an I/O thread for each socket";
  const test::Memory memory(test::Memory::Kind::plain, page * pages, 1);
  const test::Region mine(instance, memory);
  test::RegionFacts facts;
  facts.id = 1;
  facts.length = page * pages;
  const test::Remote theirs(link, facts);
  test::Request request(instance, op, &link, test::uniform_side(mine.handle(), 0, page, page),
                        test::uniform_side(theirs.handle(), 0, page, page), pages);
  request.post();
  receiving.open();
  const FrameType wanted = op == HEADRACE_READ ? FrameType::read : FrameType::write;
  (void)first.hear(wanted);
  (void)second.hear(wanted);
  link.disconnect();
  return noted.first();
}

TEST(LargeReads, are_asked_for_over_every_socket_by_the_thread_that_posts) {
  const auto self = std::this_thread::get_id();
  EXPECT_EQ(who_begins(HEADRACE_READ), (std::vector<std::thread::id>{self, self}));
}

TEST(LargeWrites, are_sent_by_the_io_threads_at_once) {
  const auto who = who_begins(HEADRACE_WRITE);
  ASSERT_EQ(who.size(), 2U);
  EXPECT_NE(who[0], std::this_thread::get_id());
  EXPECT_NE(who[1], std::this_thread::get_id());
  EXPECT_NE(who[0], who[1]) << "a thread each";
}

}  // namespace
}  // namespace headrace::tcp
