// SPDX-License-Identifier: Apache-2.0
// A NIC whose peers never pause: the worker of its engine has other things to do, too.
#include "unit/rail/two_engines.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace::rail {
namespace {

using namespace test_engines;

/// Always has more marks of a peer. Gives up at last, so that a test fails and does not hang.
class BusyNic final : public Provider {
 public:
  static constexpr std::size_t too_many = 1'000'000;

  explicit BusyNic(std::size_t& polls) : polls_(polls) {}

  [[nodiscard]] const ProviderInfo& info() const override { return info_; }
  [[nodiscard]] std::string address() const override { return "busy:1"; }
  [[nodiscard]] Health health() const override { return {}; }
  Result<Registered> register_memory(const Memory&) override { return Registered{}; }
  void deregister(MemoryId) override {}
  Result<PeerId> add_peer(std::string_view, std::string_view) override { return PeerId{1}; }
  void drop_peer(PeerId) override {}
  Result<RemoteId> load_memory(PeerId, std::string_view) override { return RemoteId{}; }
  void unload_memory(PeerId, RemoteId) override {}
  Status post_write(const Write&) override { return {Code::would_block}; }
  Status post_read(const Read&) override { return {Code::would_block}; }
  Status post_message(PeerId, const LocalRange&, std::uint64_t) override { return {Code::would_block}; }
  Status post_receive(const LocalRange&, std::uint64_t) override { return {}; }
  void cancel(PeerId, std::uint64_t) override {}
  bool heard_from(PeerId) override { return true; }
  std::size_t poll(std::span<Event> events) override {
    if (++polls_ > too_many) return 0;
    for (Event& event : events) event = {.kind = Event::Kind::marked, .peer = PeerId{7}};
    return events.size();
  }

 private:
  ProviderInfo info_{.name = "busy", .max_moves = 1, .max_posts = 1, .max_message_bytes = 4096};
  std::size_t& polls_;
};

TEST(RailBusyNic, that_never_runs_out_of_events_does_not_keep_the_worker_nor_the_next_NIC_from_its_turn) {
  FakeNics net;
  NetClock clock(net);
  Side side;
  std::size_t polls[2] = {0, 0};
  std::vector<std::unique_ptr<Provider>> providers;
  for (std::size_t& each : polls) providers.push_back(std::make_unique<BusyNic>(each));
  side.engine = std::move(*Engine::open(std::move(providers), side, clock));
  EXPECT_GT(side.engine->poll(), 0U);
  EXPECT_LT(polls[0], 1000U);
  EXPECT_GT(polls[1], 0U);
}

}  // namespace
}  // namespace headrace::rail
