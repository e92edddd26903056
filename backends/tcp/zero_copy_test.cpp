// SPDX-License-Identifier: Apache-2.0
// Payload that goes into a socket by reference: over real sockets.
#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "backends/tcp/faults.hpp"
#include "backends/tcp/frame_writer.hpp"
#include "backends/tcp/played_socket.hpp"
#include "support/plugin_instance.hpp"

#include <gtest/gtest.h>

#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>

#include <future>
#include <random>

namespace headrace::tcp {
namespace {

/// Two ends of a TCP connection within this machine; the first does not wait.
struct PipePair {
  UniqueFd first, second;
  PipePair() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    if (::bind(listener.get(), address, length) < 0 || ::listen(listener.get(), 1) < 0)
      throw std::runtime_error("listen");
    ::getsockname(listener.get(), address, &length);
    first = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(first.get(), address, length) < 0) throw std::runtime_error("connect");
    ::fcntl(first.get(), F_SETFL, O_NONBLOCK);
    second = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
};

/// The system's, counted; and what a system that knows no such calls would say.
class CountedCalls final : public SocketCalls {
 public:
  std::uint64_t shared = 0, copied = 0;
  int vmsplice_error = 0, splice_error = 0;

  ssize_t sendmsg(int fd, const msghdr* message, bool more) override {
    return count(copied, system_.sendmsg(fd, message, more));
  }
  ssize_t recvmsg(int fd, msghdr* message) override { return system_.recvmsg(fd, message); }
  ssize_t vmsplice(int pipe, const iovec* pieces, std::size_t n) override {
    if (vmsplice_error != 0) return errno = vmsplice_error, -1;
    return system_.vmsplice(pipe, pieces, n);
  }
  ssize_t splice(int pipe, int fd, std::size_t bytes, bool more) override {
    if (splice_error != 0) return errno = splice_error, -1;
    return count(shared, system_.splice(pipe, fd, bytes, more));
  }
  int connect(int fd, const sockaddr* address, socklen_t length) override {
    return system_.connect(fd, address, length);
  }
  int accept(int fd, sockaddr* address, socklen_t* length) override {
    return system_.accept(fd, address, length);
  }

 private:
  static ssize_t count(std::uint64_t& into, ssize_t n) {
    if (n > 0) into += static_cast<std::uint64_t>(n);
    return n;
  }
  SystemCalls system_;
};

std::string random_text(std::size_t bytes) {
  static std::mt19937_64 random(std::random_device{}());
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

class ZeroCopy : public ::testing::Test {
 protected:
  /// Heads and pieces of `memory`, of odd lengths at odd places; and how they must look.
  std::string fill(FrameWriter& writer) {
    std::string expected;
    EXPECT_TRUE(writer.fits(1000));
    for (int frame = 0; frame < 3; ++frame) {
      writer.put("head of a frame", 15);
      expected += "head of a frame";
      std::vector<iovec> payload;
      for (std::size_t i = 0; i < 100; ++i) {
        const std::size_t at = (static_cast<std::size_t>(frame) * 100 + 99 - i) * 8192 + i,
                          length = 4096 + 37 * i;
        payload.push_back({memory.data() + at, length});
        expected.append(memory, at, length);
      }
      writer.share(payload);
    }
    writer.keep("kept");
    expected += "kept";
    EXPECT_EQ(writer.bytes(), expected.size());
    return expected;
  }
  /// Sends all, while the other end receives; what it got.
  std::string send(FrameWriter& writer, SocketCalls& calls, std::size_t bytes) {
    auto received = std::async(std::launch::async, [&] {
      std::string got(bytes, '\0');
      got.resize(static_cast<std::size_t>(
          std::max<ssize_t>(0, ::recv(pair.second.get(), got.data(), bytes, MSG_WAITALL))));
      return got;
    });
    FrameWriter::Step step;
    do {
      step = writer.flush(calls, pair.first.get(), true);
      pollfd ready{pair.first.get(), POLLOUT, 0};
      if (step.result == FrameWriter::Flushed::blocked) ::poll(&ready, 1, 10'000);
    } while (step.result == FrameWriter::Flushed::blocked);
    EXPECT_EQ(step.result, FrameWriter::Flushed::all) << step.error;
    EXPECT_TRUE(writer.empty());
    return received.get();
  }

  PipePair pair;
  const std::string text = random_text(301 * 8192);
  std::string memory = text;
};

TEST_F(ZeroCopy, what_is_shared_arrives_in_its_place_and_is_not_copied_into_the_socket) {
  CountedCalls calls;
  FrameWriter writer;
  for (int batch = 0; batch < 5; ++batch) {
    const std::string expected = fill(writer);
    EXPECT_TRUE(send(writer, calls, expected.size()) == expected);
    const std::uint64_t heads = 3 * 15 + 4;
    EXPECT_EQ(std::exchange(calls.copied, 0), heads);
    EXPECT_EQ(std::exchange(calls.shared, 0), expected.size() - heads);
  }
}

TEST_F(ZeroCopy, short_calls_and_interruptions_lose_nothing) {
  FaultyCalls calls(FaultPlan::parse("short_writes=20000,eagain=20,eintr=20").value(),
                    std::make_unique<SystemCalls>());
  FrameWriter writer;
  const std::string expected = fill(writer);
  EXPECT_TRUE(send(writer, calls, expected.size()) == expected);
}

TEST_F(ZeroCopy, where_the_system_does_not_share_payload_is_copied) {
  for (const auto& [vmsplice_error, splice_error] : {std::pair{EPERM, 0}, std::pair{0, EINVAL}}) {
    CountedCalls calls;
    calls.vmsplice_error = vmsplice_error;
    calls.splice_error = splice_error;
    FrameWriter writer;
    for (int batch = 0; batch < 2; ++batch) {
      const std::string expected = fill(writer);
      EXPECT_TRUE(send(writer, calls, expected.size()) == expected);
    }
    EXPECT_EQ(calls.shared, 0U);
  }
}

TEST_F(ZeroCopy, only_who_may_shares) {
  CountedCalls calls;
  FrameWriter writer;
  const std::string expected = fill(writer);
  const auto step = writer.flush(calls, pair.first.get(), false);
  EXPECT_GT(step.bytes, 0U);
  EXPECT_EQ(calls.copied, step.bytes);
  EXPECT_EQ(calls.shared, 0U);
}

TEST_F(ZeroCopy, memory_that_is_not_there_is_told_as_it_is_of_copies) {
  void* const gone = ::mmap(nullptr, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  CountedCalls calls;
  FrameWriter writer;
  const iovec payload{gone, 1 << 20};
  writer.share({&payload, 1});
  const auto step = writer.flush(calls, pair.first.get(), true);
  EXPECT_EQ(step.result, FrameWriter::Flushed::failed);
  EXPECT_EQ(step.error, EFAULT);
  ::munmap(gone, 1 << 20);
}

TEST_F(ZeroCopy, a_batch_given_up_halfway_leaves_nothing_for_the_next) {
  CountedCalls calls;
  FrameWriter writer;
  (void)fill(writer);
  while (writer.flush(calls, pair.first.get(), true).result == FrameWriter::Flushed::all) (void)fill(writer);
  ASSERT_FALSE(writer.empty());  // the socket is full
  writer.clear();
  EXPECT_TRUE(writer.empty());
  pair = PipePair();
  const std::string expected = fill(writer);
  EXPECT_TRUE(send(writer, calls, expected.size()) == expected);
}

/// An instance, and a peer that reads a region of it and leaves the answer in its socket.
class ZeroCopyOwner : public ::testing::Test {
 protected:
  static constexpr std::uint64_t length = 1 << 20;

  ZeroCopyOwner() {
    const auto info = ConnectionInfo::parse(instance.connection_info());
    peer = std::make_unique<PlayedSocket>(
        info.value().addresses.front().resolve(TcpAddress::Use::connect).value().front(), 0);
    region = std::make_unique<test::Region>(instance, memory);
    peer->read_from(region->facts().id, length);
    header = peer->hear_header();
    EXPECT_EQ(header.type, FrameType::read_data);
    EXPECT_EQ(header.payload, length);
  }

  test::World world;
  test::Instance instance{world,
                          plugin::table<TcpBackend>(),
                          {{"listen", "127.0.0.1:0"}, {"zero_copy", "yes"}, {"socket_buffer", "4MiB"}},
                          test::PluginHost::Args{}};
  const test::Memory memory{test::Memory::Kind::plain, length, 1};
  std::unique_ptr<PlayedSocket> peer;
  std::unique_ptr<test::Region> region;
  FrameHeader header;
};

TEST_F(ZeroCopyOwner, deregistering_waits_until_the_peer_has_taken_what_it_read) {
  const std::string before(reinterpret_cast<const char*>(memory.bytes().data()), length);
  auto gone = std::async(std::launch::async, [&] {
    region = nullptr;
    std::memset(const_cast<std::byte*>(memory.bytes().data()), '!',
                length);  // its memory is used for something else
  });
  EXPECT_EQ(gone.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  EXPECT_TRUE(peer->hear_payload(header) == before);
  EXPECT_EQ(gone.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  const FrameHeader question = peer->hear(FrameType::ping);
  EXPECT_NE(question.request, 0U);
  peer->say_number(FrameType::pong, question.request);
  EXPECT_EQ(gone.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_FALSE(test::Link(instance, instance.host().accepted_links().front().connection,
                          instance.host().accepted_links().front().token)
                   .lost());
}

TEST_F(ZeroCopyOwner, two_that_deregister_at_once_both_wait) {
  const test::Memory more(test::Memory::Kind::plain, length, 2);
  auto other = std::make_unique<test::Region>(instance, more);
  peer->read_from(other->facts().id, length);
  EXPECT_TRUE(peer->hear_payload(header).size() == length);
  EXPECT_EQ(peer->hear_header().payload, length);
  auto first = std::async(std::launch::async, [&] { region = nullptr; });
  EXPECT_EQ(first.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  auto second = std::async(std::launch::async, [&] { other = nullptr; });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  (void)peer->hear_payload(header);
  const FrameHeader question = peer->hear(FrameType::ping);
  peer->say_number(FrameType::pong, question.request);
  EXPECT_EQ(first.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(second.wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST_F(ZeroCopyOwner, deregistering_does_not_wait_for_long) {
  const auto begin = std::chrono::steady_clock::now();
  region = nullptr;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  const auto lost = [&] {
    return instance.host().link(instance.host().accepted_links().front().token)->lost;
  };
  ASSERT_TRUE(world.until(lost)) << world.describe();
}

}  // namespace
}  // namespace headrace::tcp
