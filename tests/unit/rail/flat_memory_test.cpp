// SPDX-License-Identifier: Apache-2.0
// Peers come and go for a long time: an engine keeps nothing of those that went.
#include "unit/rail/two_messengers.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using namespace test_engines;

const LinkOptions hasty{.chunk_bytes = 4096,
                        .rail_timeout = 300ms,
                        .cancel_timeout = 200ms,
                        .retry_after = 100ms,
                        .heartbeat = 200ms,
                        .silent_after = 1s};

/// Two engines that hold memory for a few requests, which is used again and again.
class Comers {
 public:
  explicit Comers(std::uint64_t seed) : random_(seed), engines_(2, 2, seed, hasty) {
    register_memory(0);
    register_memory(1);
  }

  /// A link, something posted on it, an end of some kind.
  void round() {
    auto& [near, far] = engines_.sides;
    for (Side& side : engines_.sides) {
      side.ends.clear(), side.sends.clear(), side.receives.clear(), side.counts.clear();
      side.why_lost.clear();
      side.link = nullptr;
    }
    if (random_() % 8 == 0) return connect_to_nobody();
    engines_.connect();
    post();
    for (std::uint64_t steps = random_() % 40; steps > 0; --steps) engines_.step();
    const bool started_again = end_somehow();
    ASSERT_TRUE(engines_.until([&] { return near.link->lost() && (started_again || far.link->lost()); }));
    near.engine->forget(*near.link);
    if (!started_again) far.engine->forget(*far.link);
    for (const char* nic : {"a0", "a1", "b0", "b1"}) engines_.net.revive(nic);
    far.engine->cancel_receive(7);
    ASSERT_TRUE(engines_.until([&] { return near.engine->held() + far.engine->held() == 0; }, 5000))
        << near.engine->held() << " and " << far.engine->held() << " are held";
    EXPECT_TRUE(near.ends.contains(request_.get()));
    EXPECT_TRUE(near.sends.contains(1));
  }

 private:
  void register_memory(int side) {
    memory_[side].resize(1 << 17);
    auto registered = engines_.sides[side].engine->register_memory(
        {reinterpret_cast<std::uintptr_t>(memory_[side].data()), 1 << 17, {}, Access::peers_read_and_write});
    ASSERT_TRUE(registered);
    region_[side] = std::move(*registered);
    if (side == 1) remote_ = std::move(*Engine::load(Engine::descriptor(region_[1])));
  }
  void connect_to_nobody() {
    Engine& engine = *engines_.sides[0].engine;
    auto link = engine.connect(std::string("\x02\x06\0fake:x\x06\0fake:y", 17));
    ASSERT_TRUE(link);
    ASSERT_TRUE(engines_.until([&] { return (*link)->lost(); }));
    engine.forget(**link);
    EXPECT_EQ(engine.held(), 0U);
  }
  void post() {
    sides_[0] = uniform_side(&region_[0], 0, 4096, 4096);
    sides_[1] = uniform_side(&remote_, 0, 4096, 4096);
    for (int i = 0; i < 2; ++i) views_[i] = sides_[i].view();
    headrace_prepare_v1 prepared{};
    prepared.struct_size = sizeof prepared;
    prepared.op = random_() % 2 == 0 ? HEADRACE_WRITE : HEADRACE_READ;
    prepared.count = 16;
    prepared.bytes = 16 << 12;
    prepared.local = &views_[0];
    prepared.remote = &views_[1];
    request_ = std::make_unique<Request>(prepared);
    PostPlan plan;
    if (request_->is_write()) plan.counted = CountedAt{};
    Link& link = *engines_.sides[0].link;
    ASSERT_TRUE(link.post(*request_, plan).ok());
    ASSERT_TRUE(link.send({&region_[0], 0, 1 + random_() % 20'000, 1}).ok());
    ASSERT_TRUE(engines_.sides[1].engine->post_receive({&region_[1], 1 << 16, 1 << 16, 7}).ok());
  }
  /// True: side 1 was started again, so its link is gone.
  bool end_somehow() {
    const std::uint64_t now_ns = engines_.net.now_ns();
    switch (random_() % 5) {
      case 0:
        engines_.sides[0].link->close("the test closes it", now_ns);
        return false;
      case 1:
        engines_.sides[1].link->close("the test closes it", now_ns);
        return false;
      case 2:
        for (const char* nic : {"a0", "b1"}) engines_.net.kill(nic, static_cast<Told>(random_() % 3));
        return false;
      case 3:
        engines_.sides[0].link->cancel(*request_, now_ns);
        engines_.sides[0].link->cancel_send(1, now_ns);
        for (int i = 0; i < 30; ++i) engines_.step();
        engines_.sides[0].link->close("the test closes it", now_ns);
        return false;
      default:
        engines_.open_again(1, hasty);
        register_memory(1);
        return true;
    }
  }

  std::mt19937_64 random_;
  TwoEngines engines_;
  std::vector<std::uint8_t> memory_[2];
  LocalRegion region_[2];
  RemoteRegion remote_;
  PageSide sides_[2];
  headrace_side_v1 views_[2]{};
  std::unique_ptr<Request> request_;
};

void come_and_go(int rounds) {
  Comers comers(3);
  for (int i = 0; i < rounds && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    comers.round();
  }
}

TEST(RailEngineMemory, is_flat_while_peers_come_and_go) { come_and_go(100); }

TEST(RailEngineMemory_slow, is_flat_after_ten_thousand_peers) { come_and_go(10'000); }

}  // namespace
}  // namespace headrace::rail
