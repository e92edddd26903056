// SPDX-License-Identifier: Apache-2.0
// Two engines over tcp whose bytes come late, in small pieces, and stop at times: what packets that are lost
// or overtake each other do to a socket.
#include "rail/nic_list.hpp"
#include "rail/tcp/address.hpp"
#include "rail/tcp/provider.hpp"
#include "support/slow_forwarder.hpp"
#include "unit/rail/two_messengers.hpp"

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using namespace test_engines;
using test::SlowForwarder;
using test::Slowness;

/// All connections that side 0 makes go through the slow network. Both sides send over them.
class SlowEngines final : public EnginePair {
 public:
  SlowEngines(const Slowness& slowness, std::uint64_t seed) {
    const LinkOptions options{.chunk_bytes = 16 << 10, .rail_bytes = 128 << 10, .retry_after = 20ms};
    for (int side = 0; side < 2; ++side) {
      std::vector<std::unique_ptr<Provider>> providers;
      for (const char* at : {"127.0.0.1", "127.0.0.2"}) {
        auto opened = tcp::TcpProvider::open(at);
        EXPECT_TRUE(opened) << opened.error().message;
        if (side == 1) forward((*opened)->address(), slowness, seed + providers.size());
        providers.push_back(std::move(*opened));
      }
      open(side, std::move(providers), clock_, options);
    }
  }
  ~SlowEngines() override {
    for (Side& side : sides) side.engine.reset();
  }
  void step() override {
    std::size_t events = 0;
    for (Side& side : sides) events += side.engine->poll();
    for (const auto& network : networks) network->pass();
    if (events == 0) ::poll(nullptr, 0, 1);
  }
  std::string address_of_1() override { return encode_nic_list(addresses_); }
  [[nodiscard]] bool both_live() const {
    return sides[0].link->live_rails() == 2 && sides[1].link->live_rails() == 2;
  }

  std::vector<std::unique_ptr<SlowForwarder>> networks;  ///< by NIC

 private:
  void forward(const std::string& address, const Slowness& slowness, std::uint64_t seed) {
    auto nic = tcp::read_address(address);
    ASSERT_TRUE(nic);
    networks.push_back(SlowForwarder::open(nic->at, slowness, seed));
    ASSERT_NE(networks.back(), nullptr);
    nic->at = networks.back()->address();
    addresses_.push_back(encode(*nic));
  }

  SteadyClock clock_;
  std::vector<std::string> addresses_;
};

/// Writes and messages of all sizes, once.
struct Traffic {
  explicit Traffic(SlowEngines& to_use)
      : engines(to_use), writes(to_use, 4 << 20), messages(to_use, 2 << 20) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(messages.receive(64 << 10, nullptr, true).ok());
  }
  void post_some() {
    for (int i = 0; i < 10; ++i) {
      const PostPlan by_page{Spread::free, 0, CountedAt{}, CountBy::page};
      ASSERT_TRUE(writes.post(1 + i % 7, 1 + i * 97 % 9000, by_page).ok());
      ASSERT_TRUE(messages.send(i % 3 == 0 ? 40'000 + i : i * 90).ok());
    }
    ASSERT_TRUE(writes.post_read(9, 9000).ok());
  }
  void expect_exact() {
    ASSERT_TRUE(
        engines.until([&] { return writes.all_ended() && writes.all_counted() && messages.all_sent(); }));
    for (const auto& [request, status] : engines.sides[0].ends) EXPECT_TRUE(status.ok());
    writes.check_counts();
    writes.check_quiet();
    ASSERT_EQ(messages.arrived.size(), messages.posted());
    for (std::uint64_t i = 0; i < messages.posted(); ++i) ASSERT_EQ(messages.arrived[i], i);
  }

  SlowEngines& engines;
  Writes writes;
  Messages messages;
};

TEST(RailSlowNetwork, delays_stalls_and_pieces_change_no_byte_and_no_count) {
  SlowEngines engines({}, 1);
  engines.connect();
  Traffic traffic(engines);
  traffic.post_some();
  traffic.expect_exact();
}

TEST(RailSlowNetwork, connections_that_are_cut_in_mid_frame_change_no_byte_and_no_count) {
  SlowEngines engines({.most_piece_bytes = 3000}, 2);
  engines.connect();
  Traffic traffic(engines);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(engines.until([&] { return engines.both_live(); }));
    traffic.post_some();
    for (int i = 0; i < 5; ++i) engines.step();
    EXPECT_GT(engines.networks[round % 2]->cut(), 0U);
    traffic.expect_exact();
  }
}

TEST(RailSlowNetwork_slow, many_random_networks) {
  for (std::uint64_t seed = 10; seed < 40 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    SlowEngines engines({.longest_delay = std::chrono::microseconds(1 + seed * 300),
                         .most_piece_bytes = 1 + seed * seed * 20,
                         .stalled_percent = static_cast<unsigned>(seed % 5)},
                        seed);
    engines.connect();
    Traffic traffic(engines);
    for (int round = 0; round < 3; ++round) {
      ASSERT_TRUE(engines.until([&] { return engines.both_live(); }));
      traffic.post_some();
      for (std::uint64_t i = 0; i < seed % 9 * 3; ++i) engines.step();
      engines.networks[(seed + static_cast<std::uint64_t>(round)) % 2]->cut();
      traffic.expect_exact();
    }
  }
}

}  // namespace
}  // namespace headrace::rail
