// SPDX-License-Identifier: Apache-2.0
// Two engines of one host, each with the NIC of this host and one of tcp.
#include "rail/engine.hpp"
#include "gpu/device_memory.hpp"
#include "rail/shm/provider.hpp"
#include "rail/tcp/provider.hpp"
#include "support/fake_cuda.hpp"
#include "support/page_side.hpp"
#include "support/temporary_folder.hpp"
#include "unit/rail/shm/fake_gpus.hpp"
#include "unit/rail/two_engines.hpp"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
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
  bool heard_from(PeerId peer) override { return nic_->heard_from(peer); }
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
  explicit NearEngines(const shm::Options& options = {}) {
    for (int side = 0; side < 2; ++side) {
      near[side] = add(shm::ShmProvider::open(folder_.path(), options));
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

TEST(RailEngineNear, one_that_is_pinned_but_near_first_goes_over_the_rail_of_this_host) {
  NearEngines engines;
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(3, 1000, near_counted).ok());  // at its end that rail lives
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  const int before = engines.near[0]->posts;
  PostPlan plan{Spread::pinned, 1, CountedAt{}};
  plan.near_first = true;
  ASSERT_TRUE(writes.post(3, 1000, plan).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  EXPECT_EQ(engines.far[0]->posts, 0);
  EXPECT_EQ(engines.near[0]->posts, before + 1);
}

/// Memory of a GPU of each side, registered with its engine: that of this host takes it, that of tcp does
/// not.
struct GpuMemories {
  GpuMemories(cuda::FakeCuda& fake, NearEngines& engines) {
    const auto device = gpu::Device::open(*fake.load(), 0).value();
    for (int side = 0; side < 2; ++side) {
      memory[side] = gpu::DeviceMemory::allocate(device, bytes).value();
      std::memset(reinterpret_cast<void*>(memory[side].address()), 'a' + side, bytes);
      auto registered = engines.sides[side].engine->register_memory(
          {memory[side].address(), bytes, 0, Access::peers_read_and_write});
      EXPECT_TRUE(registered) << registered.error().message;
      region[side] = std::move(*registered);
    }
    auto loaded = Engine::load(Engine::descriptor(region[1]));
    EXPECT_TRUE(loaded) << loaded.error().message;
    remote = std::move(*loaded);
    local_side = test::uniform_side(&region[0], 0, 1000, 1000);
    remote_side = test::uniform_side(&remote, 0, 1000, 1000);
    local_view = local_side.view();
    remote_view = remote_side.view();
    headrace_prepare_v1 prepared{};
    prepared.struct_size = sizeof prepared;
    prepared.op = HEADRACE_WRITE;
    prepared.count = bytes / 1000;
    prepared.bytes = bytes;
    prepared.local = &local_view;
    prepared.remote = &remote_view;
    request.emplace(prepared);
  }
  [[nodiscard]] bool arrived() const {
    const auto* const at = reinterpret_cast<const char*>(memory[1].address());
    return std::count(at, at + bytes, 'a') == static_cast<long>(bytes);
  }

  static constexpr std::uint64_t bytes = 500'000;
  gpu::DeviceMemory memory[2];
  LocalRegion region[2];
  RemoteRegion remote;
  test::PageSide local_side, remote_side;
  headrace_side_v1 local_view{}, remote_view{};
  std::optional<Request> request;
};

TEST(RailEngineNear, memory_of_a_GPU_goes_over_the_NIC_that_takes_it) {
  cuda::FakeCuda fake;
  shm::Options options;
  options.gpus = gpus_of(fake);
  NearEngines engines(options);
  GpuMemories memories(fake, engines);
  for (const Spread spread : {Spread::free, Spread::in_turn, Spread::pinned}) {
    engines.sides[0].ends.clear();
    ASSERT_TRUE(engines.sides[0].link->post(*memories.request, {spread, 1, CountedAt{0, 3, 1}}).ok());
    ASSERT_TRUE(engines.until([&] { return !engines.sides[0].ends.empty(); }));
    EXPECT_TRUE(engines.sides[0].ends.begin()->second.ok());
  }
  EXPECT_TRUE(memories.arrived());
  ASSERT_TRUE(engines.until([&] { return engines.sides[1].counts[3] == 3; }));
  EXPECT_EQ(engines.far[0]->posts, 0);
}

TEST(RailEngineNear, memory_that_no_rail_reaches_is_told_and_nothing_waits) {
  cuda::FakeCuda fake;
  shm::Options options;
  options.gpus = gpus_of(fake);
  NearEngines engines(options);
  GpuMemories memories(fake, engines);
  memories.remote.keys.assign(2, std::string(no_key));
  ASSERT_TRUE(engines.sides[0].link->post(*memories.request, near_counted).ok());
  ASSERT_TRUE(engines.until([&] { return !engines.sides[0].ends.empty(); }));
  EXPECT_EQ(engines.sides[0].ends.begin()->second.code, Code::not_supported);
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(3, 1000, near_counted).ok());
  engines.sides[0].ends.clear();
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
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
