// SPDX-License-Identifier: Apache-2.0
// Two engines of one host, each with the NIC of this host and one of tcp.
#include "rail/engine.hpp"
#include "rail/shm/provider.hpp"
#include "rail/tcp/provider.hpp"
#include "support/temporary_folder.hpp"
#include "unit/rail/two_engines.hpp"

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using test_engines::EnginePair;
using test_engines::Side;
using test_engines::Writes;

const PostPlan near_counted{Spread::free, 0, CountedAt{}};
const LinkOptions near_chunks{.chunk_bytes = 64 << 10, .rail_bytes = 256 << 10, .retry_after = 24h};

/// Any NIC, and how many writes and reads it was given.
class Watched final : public Provider {
 public:
  explicit Watched(std::unique_ptr<Provider> nic) : nic_(std::move(nic)) {}

  [[nodiscard]] const ProviderInfo& info() const override { return nic_->info(); }
  [[nodiscard]] std::string address() const override { return nic_->address(); }
  [[nodiscard]] Health health() const override { return nic_->health(); }
  Result<Registered> register_memory(const Memory& memory) override { return nic_->register_memory(memory); }
  void deregister(MemoryId memory) override { nic_->deregister(memory); }
  Result<PeerId> add_peer(std::string_view address, std::string_view hello) override {
    return nic_->add_peer(address, hello);
  }
  void drop_peer(PeerId peer) override { nic_->drop_peer(peer); }
  Result<RemoteId> load_memory(PeerId peer, std::string_view key) override {
    return nic_->load_memory(peer, key);
  }
  void unload_memory(PeerId peer, RemoteId memory) override { nic_->unload_memory(peer, memory); }
  Status post_write(const Write& write) override {
    ++posts;
    return nic_->post_write(write);
  }
  Status post_read(const Read& read) override {
    ++posts;
    return nic_->post_read(read);
  }
  Status post_message(PeerId peer, const LocalRange& bytes, std::uint64_t token) override {
    return nic_->post_message(peer, bytes, token);
  }
  Status post_receive(const LocalRange& room, std::uint64_t token) override {
    return nic_->post_receive(room, token);
  }
  void cancel(PeerId peer, std::uint64_t token) override { nic_->cancel(peer, token); }
  /// Says `down` once, when `dies` is set.
  std::size_t poll(std::span<Event> events) override {
    if (!dies) return nic_->poll(events);
    dies = false;
    events[0] = {.kind = Event::Kind::down, .status = {Code::backend_failed}, .text = "pulled out"};
    return 1;
  }

  int posts = 0;
  bool dies = false;

 private:
  std::unique_ptr<Provider> nic_;
};

class NearEngines final : public EnginePair {
 public:
  /// The NICs of this host come first here and last there.
  NearEngines() {
    for (int side = 0; side < 2; ++side) {
      near[side] = add(shm::ShmProvider::open(folder_.path()));
      far[side] = add(tcp::TcpProvider::open(side == 0 ? "127.0.0.1" : "127.0.0.2"));
      if (side == 1) std::swap(opened_[0], opened_[1]);
      open(side, std::exchange(opened_, {}), clock_, near_chunks);
    }
    connect();
    EXPECT_TRUE(until([&] { return sides[0].link->live_rails() == 2 && sides[1].link->live_rails() == 2; }));
  }
  ~NearEngines() override {
    for (Side& side : sides) side.engine.reset();
  }
  void step() override {
    std::size_t events = 0;
    for (Side& side : sides) events += side.engine->poll();
    if (events == 0) ::poll(nullptr, 0, 1);
  }

  Watched *near[2], *far[2];

 private:
  template <class Opened>
  Watched* add(Opened opened) {
    EXPECT_TRUE(opened) << opened.error().message;
    auto watched = std::make_unique<Watched>(std::move(*opened));
    Watched* const kept = watched.get();
    opened_.push_back(std::move(watched));
    return kept;
  }

  test::TemporaryFolder folder_;
  SteadyClock clock_;
  std::vector<std::unique_ptr<Provider>> opened_;
};

TEST(RailEngineNear, the_rail_of_this_host_carries_all) {
  NearEngines engines;
  Writes writes(engines, 8 << 20);
  for (int i = 0; i < 30; ++i) {
    PostPlan plan = near_counted;
    if (i % 2 == 0) plan.spread = Spread::in_turn;
    ASSERT_TRUE(writes.post(1 + i % 7, 1 + i * 997 % 30'000, plan, 1 + i % 3).ok());
  }
  ASSERT_TRUE(writes.post(20, 64 << 10, near_counted).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  ASSERT_TRUE(writes.post_read(10, 20'000).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended(); }));
  for (const auto& [request, status] : engines.sides[0].ends) EXPECT_TRUE(status.ok());
  writes.check_quiet();
  EXPECT_GT(engines.near[0]->posts, 30);
  EXPECT_EQ(engines.far[0]->posts, 0);
}

TEST(RailEngineNear, a_request_may_be_pinned_to_another_rail) {
  NearEngines engines;
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(3, 1000, {Spread::pinned, 1, CountedAt{}}).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  EXPECT_EQ(engines.far[0]->posts, 1);
  EXPECT_EQ(engines.near[0]->posts, 0);
}

TEST(RailEngineNear, when_it_dies_in_mid_run_the_others_carry_and_each_write_is_counted_once) {
  NearEngines engines;
  Writes writes(engines, 24 << 20);
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(writes.post(20, 16 << 10, near_counted).ok());
  ASSERT_TRUE(engines.until([&] { return engines.sides[1].counts.size() >= 5; }));
  engines.near[0]->dies = true;
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  for (const auto& [request, status] : engines.sides[0].ends) EXPECT_TRUE(status.ok());
  for (const auto& [immediate, count] : engines.sides[1].counts) EXPECT_EQ(count, 1U) << immediate;
  writes.check_quiet();
  EXPECT_GT(engines.far[0]->posts, 0);
}

}  // namespace
}  // namespace headrace::rail
