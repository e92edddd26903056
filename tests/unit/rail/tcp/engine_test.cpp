// SPDX-License-Identifier: Apache-2.0
// Two engines with two tcp NICs each, on 127.0.0.1 and 127.0.0.2.
#include "rail/engine.hpp"
#include "rail/tcp/provider.hpp"
#include "unit/rail/two_engines.hpp"
#include "unit/rail/two_messengers.hpp"
#include "unit/rail/wait_for_nics.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using test_engines::EnginePair;
using test_engines::Side;
using test_engines::Writes;

const PostPlan tcp_counted{Spread::free, 0, CountedAt{}};
const LinkOptions tcp_chunks{.chunk_bytes = 16 << 10, .rail_bytes = 128 << 10, .retry_after = 20ms};

class TcpEngines final : public EnginePair {
 public:
  explicit TcpEngines(const LinkOptions& options = tcp_chunks) {
    for (int side = 0; side < 2; ++side) {
      std::vector<std::unique_ptr<Provider>> providers;
      for (const char* at : {"127.0.0.1", "127.0.0.2"}) {
        auto opened = tcp::TcpProvider::open(at);
        EXPECT_TRUE(opened) << opened.error().message;
        nics_.push_back(opened->get());
        providers.push_back(std::move(*opened));
      }
      open(side, std::move(providers), clock_, options);
    }
  }
  ~TcpEngines() override {
    for (Side& side : sides) side.engine.reset();
  }

  void step() override {
    std::size_t events = 0;
    for (Side& side : sides)
      if (&side != stopped) events += side.engine->poll();
    if (events == 0) sleep_until_ready();
  }

  Side* stopped = nullptr;  ///< as by a signal: its sockets live

 private:
  /// Or for a moment: engines look at time.
  void sleep_until_ready() { test::wait_for_nics(nics_); }

  SteadyClock clock_;
  std::vector<tcp::TcpProvider*> nics_;  // of the engines
};

/// Cuts all connections of this process from and to the address; with `listeners` none can be made again.
int cut_sockets_of(const char* address, bool listeners) {
  int count = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in at{};
    socklen_t length = sizeof at;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length) < 0 || at.sin_family != AF_INET)
      continue;
    if (at.sin_addr.s_addr != ::inet_addr(address)) continue;
    sockaddr_in peer{};
    length = sizeof peer;
    const bool connected = ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
    if (!connected && !listeners) continue;
    ::shutdown(fd, SHUT_RDWR);
    ++count;
  }
  return count;
}

bool both_rails_live(TcpEngines& engines) {
  return engines.sides[0].link->live_rails() == 2 && engines.sides[1].link->live_rails() == 2;
}

TEST(RailEngineTcp, writes_over_two_NICs_bring_every_byte_and_are_counted_once) {
  TcpEngines engines;
  engines.connect();
  Writes writes(engines, 8 << 20);
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(writes.post(1 + i % 7, 1 + i * 97 % 9000, tcp_counted, 1 + i % 3).ok());
  ASSERT_TRUE(writes.post(60, 16 << 10, tcp_counted).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  for (const auto& [request, status] : engines.sides[0].ends) EXPECT_TRUE(status.ok());
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_EQ(engines.sides[1].counts.at(i), 1 + i % 3);
  writes.check_quiet();
}

TEST(RailEngineTcp, reads_bring_every_byte) {
  TcpEngines engines;
  engines.connect();
  Writes writes(engines, 4 << 20);
  ASSERT_TRUE(writes.post_read(100, 8000).ok());
  ASSERT_TRUE(writes.post_read(3, 200'000).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended(); }));
  for (const auto& [request, status] : engines.sides[0].ends) EXPECT_TRUE(status.ok());
}

TEST(RailEngineTcp, a_NIC_that_is_closed_in_mid_run_costs_no_byte_and_no_count) {
  LinkOptions options = tcp_chunks;
  options.retry_after = 24h;
  TcpEngines engines(options);
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return both_rails_live(engines); }));
  Writes writes(engines, 24 << 20);
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(writes.post(20, 16 << 10, tcp_counted).ok());
  ASSERT_TRUE(engines.until([&] { return engines.sides[1].counts.size() >= 5; }));
  EXPECT_FALSE(writes.all_ended());
  EXPECT_GT(cut_sockets_of("127.0.0.2", true), 0);
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  for (const auto& [request, status] : engines.sides[0].ends) EXPECT_TRUE(status.ok());
  for (const auto& [immediate, count] : engines.sides[1].counts) EXPECT_EQ(count, 1U) << immediate;
  EXPECT_EQ(engines.sides[0].link->live_rails(), 1U);
  writes.check_quiet();
}

TEST(RailEngineTcp, a_NIC_whose_connections_were_cut_carries_again) {
  TcpEngines engines;
  engines.connect();
  Writes writes(engines, 16 << 20);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(engines.until([&] { return both_rails_live(engines); }));
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(writes.post(20, 16 << 10, tcp_counted).ok());
    EXPECT_GT(cut_sockets_of(round % 2 == 0 ? "127.0.0.2" : "127.0.0.1", false), 0);
    ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); })) << round;
  }
  for (const auto& [immediate, count] : engines.sides[1].counts) EXPECT_EQ(count, 1U) << immediate;
  writes.check_quiet();
}

TEST(RailEngineTcp, messages_arrive_in_their_order_while_connections_are_cut) {
  TcpEngines engines;
  engines.connect();
  test_engines::Messages messages(engines, 4 << 20);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(messages.receive(200'000, nullptr, true).ok());
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(engines.until([&] { return both_rails_live(engines); }));
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(messages.send(i % 4 == 0 ? 100'000 + i : i * 90).ok());
    EXPECT_GT(cut_sockets_of(round % 2 == 0 ? "127.0.0.2" : "127.0.0.1", false), 0);
    ASSERT_TRUE(engines.until([&] { return messages.all_sent(); })) << round;
  }
  EXPECT_EQ(messages.sent_with(Code::ok), 60U);
  ASSERT_EQ(messages.arrived.size(), 60U);
  for (std::uint64_t i = 0; i < 60; ++i) EXPECT_EQ(messages.arrived[i], i);
}

TEST(RailEngineTcp, a_peer_that_is_stopped_is_lost_and_finds_out_when_it_goes_on) {
  TcpEngines engines({.retry_after = 24h, .heartbeat = 20ms, .silent_after = 1s});
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return both_rails_live(engines); }));
  engines.stopped = &engines.sides[1];
  ASSERT_TRUE(engines.until([&] { return !engines.sides[0].why_lost.empty(); }));
  EXPECT_NE(engines.sides[0].why_lost.find("nothing came over it"), std::string::npos);
  engines.stopped = nullptr;
  ASSERT_TRUE(engines.until([&] { return !engines.sides[1].why_lost.empty(); }));
  engines.sides[1].link = nullptr;
  engines.connect();
}

TEST(RailEngineTcp, a_peer_that_is_idle_may_be_stopped_for_less_than_its_silence_means) {
  TcpEngines engines({.rail_timeout = 50ms, .heartbeat = 10ms, .silent_after = 1h});
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return both_rails_live(engines); }));
  engines.stopped = &engines.sides[1];
  const std::uint64_t begin_ns = now_ns();
  ASSERT_TRUE(engines.until([&] { return now_ns() - begin_ns > 300'000'000; }));
  EXPECT_EQ(engines.sides[0].link->live_rails(), 2U)
      << "its beats have not ended for longer than rail_timeout";
  engines.stopped = nullptr;
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(10, 4096, tcp_counted).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
}

TEST(RailEngineTcp, requests_end_with_peer_lost_when_both_NICs_are_cut) {
  TcpEngines engines;
  engines.connect();
  Writes writes(engines, 16 << 20);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(writes.post(40, 16 << 10, tcp_counted).ok());
  engines.step();
  for (const char* at : {"127.0.0.1", "127.0.0.2"}) cut_sockets_of(at, true);
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && !engines.sides[0].why_lost.empty(); }));
  for (const auto& [request, status] : engines.sides[0].ends)
    EXPECT_TRUE(status.ok() || status.code == Code::peer_lost) << code_name(status.code);
}

}  // namespace
}  // namespace headrace::rail
