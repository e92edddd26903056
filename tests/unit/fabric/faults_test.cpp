// SPDX-License-Identifier: Apache-2.0
// Two fabrics over fake NICs on scripted time: NICs that die, posts that get lost, and ends that come late.
#include "fabric/core.hpp"
#include "support/fake_nics.hpp"
#include "unit/fabric/two_fabrics.hpp"

#include <algorithm>
#include <future>
#include <optional>
#include <set>

namespace headrace::test_fabric {
namespace {

using headrace::test::FakeNics;
using headrace::test::Told;

class NetClock final : public Clock {
 public:
  explicit NetClock(std::shared_ptr<FakeNics> net) : net_(std::move(net)) {}
  [[nodiscard]] std::uint64_t now_ns() const noexcept override { return net_->now_ns(); }

 private:
  const std::shared_ptr<FakeNics> net_;
};

/// Time passes only in `step`, when both workers have done what there was to do.
class FakeFabrics {
 public:
  static constexpr std::uint64_t chunk = 16 << 10;

  explicit FakeFabrics(std::uint64_t seed = 1, std::size_t bytes = 1 << 20)
      : net(std::make_shared<FakeNics>(seed)), random(seed), here(open("a")), there(open("b")) {
    here_block.emplace(here, random_bytes(bytes, random), FabricAccess::local);
    there_block.emplace(there, std::vector<std::uint8_t>(bytes), FabricAccess::writable);
    // The first write finds all NICs connected.
    const auto peer = value_of(here.connect(there.address()));
    EXPECT_TRUE(ends(value_of(here.post_immediate(peer, {0, 99}))));
    net->set_faults({});
  }
  /// The faults end first, so that the fabrics close at once.
  ~FakeFabrics() {
    net->set_faults({});
    for (int i = 0; i < 400 && net->pending() > 0; ++i) step();
  }

  void step() {
    work();
    if (!net->run_next()) net->advance(20ms);
    work();
  }
  template <class Holds>
  bool until(const Holds& holds, int steps = 20'000) {
    for (int i = 0; i < steps && !holds(); ++i) step();
    return holds();
  }
  bool ends(const FabricWork& work) {
    return until(
        [&] { return work.state() != RequestState::posted && work.state() != RequestState::canceling; });
  }
  bool all_end(const std::vector<FabricWork>& works) {
    return std::ranges::all_of(works, [this](const FabricWork& work) { return ends(work); });
  }
  FabricWork write(std::uint64_t offset, std::uint64_t bytes, const FabricPost& post = {}) {
    return value_of(
        here.write(here_block->memory, offset, there_block->memory.descriptor(), offset, bytes, post));
  }

  std::shared_ptr<FakeNics> net;
  std::mt19937_64 random;
  std::optional<Block> here_block, there_block;  // they outlive the fabrics, whose posts may not have ended
  Fabric here, there;

 private:
  Fabric open(const std::string& name) {
    std::vector<fabric::OpenGroup> groups(1);
    for (const char* const nic : {"0", "1"}) {
      groups[0].providers.push_back(net->open(name + nic));
      groups[0].shown.nics.push_back({.name = name + nic, .provider = {}, .address = {}, .why = {}});
    }
    fabric::CoreSetup setup;
    setup.clock = std::make_shared<NetClock>(net);
    setup.links.chunk_bytes = chunk;
    setup.links.rail_bytes = 8 * chunk;
    return value_of(fabric::Core::open(std::move(groups), setup));
  }
  /// A task runs before a poll: after the second one the first poll is over.
  void work() {
    for (const Fabric* const each : {&here, &there})
      for (int i = 0; i < 2; ++i)
        static_cast<void>(fabric::Core::of(*each)->worker(0).run([](fabric::Carrier&) {}));
  }
};

FabricPost counted(std::uint32_t immediate) {
  FabricPost post;
  post.immediate = {immediate, 0};
  return post;
}

TEST(FabricFaults, a_network_card_that_dies_costs_no_byte_and_no_count) {
  for (const Told told : {Told::early, Told::late, Told::never}) {
    FakeFabrics two;
    auto expectation = value_of(two.there.expect({1, 0}, 1));
    std::vector<FabricWork> works;
    for (std::uint64_t i = 0; i < 16; ++i) works.push_back(two.write(i << 16, 1 << 16, counted(1)));
    ASSERT_TRUE(two.until([&] { return expectation.rounds() >= 3; }));
    two.net->kill("a1", told);
    ASSERT_TRUE(two.all_end(works));
    ASSERT_TRUE(two.until([&] { return expectation.rounds() >= 16; }));
    for (const FabricWork& work : works) EXPECT_EQ(work.state(), RequestState::done) << work.error().message;
    for (int i = 0; i < 100; ++i) two.step();
    EXPECT_EQ(expectation.rounds(), 16U) << "counted twice";
    EXPECT_EQ(two.here_block->bytes, two.there_block->bytes);
  }
}

TEST(FabricFaults, without_a_living_network_card_posts_end_with_peer_lost_and_a_reason) {
  FakeFabrics two;
  std::vector<FabricWork> works;
  for (std::uint64_t i = 0; i < 8; ++i) works.push_back(two.write(i << 16, 1 << 16));
  works.push_back(value_of(two.here.post_immediate(value_of(two.here.connect(two.there.address())), {5, 0})));
  two.step();
  for (const char* const nic : {"a0", "a1"}) two.net->kill(nic, Told::never);
  const std::uint64_t killed_ns = two.net->now_ns();
  ASSERT_TRUE(two.all_end(works));
  EXPECT_LT(two.net->now_ns() - killed_ns, 5'000'000'000U);
  for (const FabricWork& work : works) {
    EXPECT_EQ(work.error().code, Code::peer_lost) << work.error().message;
    EXPECT_NE(work.error().message.find("nothing ended on it"), std::string::npos) << work.error().message;
  }
  for (const char* const nic : {"a0", "a1"}) two.net->revive(nic);
  const FabricWork again = two.write(0, 1000);
  ASSERT_TRUE(two.ends(again));
  EXPECT_EQ(again.state(), RequestState::done) << again.error().message;
}

/// Overwrites the source when the end is told: a byte that is read later shows at the target.
struct ReusedSource {
  explicit ReusedSource(FakeFabrics& fabrics) : two(fabrics) {
    for (auto& byte : two.here_block->bytes) byte %= 200;
  }
  void reuse() { std::ranges::fill(two.here_block->bytes, std::uint8_t{0xDD}); }
  [[nodiscard]] bool seen_at_target() {
    for (int i = 0; i < 300 && two.net->pending() > 0; ++i) two.step();
    return std::ranges::find(two.there_block->bytes, 0xDD) != two.there_block->bytes.end();
  }
  FakeFabrics& two;
};

TEST(FabricFaults, a_deadline_ends_a_post_when_its_memory_is_quiet) {
  FakeFabrics two;
  ReusedSource source(two);
  two.net->set_faults({.shortest = 1us, .longest = 2ms, .lost_percent = 20});
  FabricPost post;
  post.timeout = 300ms;
  const std::uint64_t begin_ns = two.net->now_ns();
  const FabricWork work = two.write(0, 1 << 20, post);
  ASSERT_TRUE(two.ends(work));
  EXPECT_EQ(work.error().code, Code::timed_out) << work.error().message;
  EXPECT_NE(work.error().message.find("write of 1048576 bytes"), std::string::npos) << work.error().message;
  EXPECT_GE(two.net->now_ns() - begin_ns, 300'000'000U);
  EXPECT_LT(two.net->now_ns() - begin_ns, 3'000'000'000U);
  source.reuse();
  EXPECT_FALSE(source.seen_at_target());
}

TEST(FabricFaults, a_failure_is_not_told_while_another_network_card_still_writes) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    FakeFabrics two(seed);
    ReusedSource source(two);
    two.net->set_faults({.shortest = 1us, .longest = 50ms});
    const FabricWork work = two.write(0, 1 << 20);
    for (int i = 0; i < 20; ++i) two.step();
    ASSERT_TRUE(two.there.deregister(two.there_block->memory));
    ASSERT_TRUE(two.ends(work));
    EXPECT_EQ(work.error().code, Code::not_found) << work.error().message;
    source.reuse();
    EXPECT_FALSE(source.seen_at_target());
  }
}

TEST(FabricFaults, memory_that_two_threads_deregister_is_quiet_when_either_call_returns) {
  FakeFabrics two;
  two.net->set_faults({.shortest = 1us, .longest = 50ms});
  const FabricWork work = two.write(0, 1 << 20);
  for (int i = 0; i < 5; ++i) two.step();
  const auto deregister = [&] {
    auto done = two.here.deregister(two.here_block->memory);
    EXPECT_TRUE(work.state() == RequestState::canceled) << "it still uses the memory";
    return done.code();
  };
  auto one = std::async(std::launch::async, deregister);
  auto other = std::async(std::launch::async, deregister);
  const auto both = [&] {
    return one.wait_for(0s) == std::future_status::ready && other.wait_for(0s) == std::future_status::ready;
  };
  EXPECT_TRUE(two.until(both));
  EXPECT_EQ(std::set({one.get(), other.get()}), std::set({Code::ok, Code::not_found}));
}

TEST(FabricFaults, a_canceled_post_leaves_its_memory_quiet) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    FakeFabrics two(seed);
    ReusedSource source(two);
    two.net->set_faults({.shortest = 1us, .longest = 20ms, .doubled_percent = 20});
    const FabricWork work = two.write(0, 1 << 20);
    for (int i = 0; i < 15; ++i) two.step();
    work.cancel();
    ASSERT_TRUE(two.ends(work));
    EXPECT_EQ(work.state(), RequestState::canceled) << work.error().message;
    source.reuse();
    EXPECT_FALSE(source.seen_at_target());
  }
}

TEST(FabricFaults, every_immediate_is_counted_once_whatever_the_network_does) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    FakeFabrics two(seed);
    auto expectation = value_of(two.there.expect({1, 0}, 1));
    two.net->set_faults({.shortest = 1us, .longest = 5ms, .doubled_percent = 20, .lost_percent = 2});
    std::vector<FabricWork> works;
    std::uint64_t done = 0;
    for (std::uint64_t i = 0; i < 20; ++i) {
      works.push_back(two.write((i % 16) << 16, two.random() % (1 << 16), counted(1)));
      for (int steps = 0; steps < 20; ++steps) two.step();
      if (i % 10 == 5)
        two.net->kill(two.random() % 2 == 0 ? "a0" : "b1", static_cast<Told>(two.random() % 3));
      if (i % 10 == 9)
        for (const char* const nic : {"a0", "b1"}) two.net->revive(nic);
    }
    ASSERT_TRUE(two.all_end(works));
    for (const FabricWork& work : works) done += work.state() == RequestState::done ? 1 : 0;
    two.net->set_faults({});
    two.until([&] { return expectation.rounds() >= done; }, 2000);
    for (int i = 0; i < 100; ++i) two.step();
    EXPECT_LE(expectation.rounds(), works.size()) << "seed " << seed;
    if (done == works.size()) {
      EXPECT_EQ(expectation.rounds(), done) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace headrace::test_fabric
