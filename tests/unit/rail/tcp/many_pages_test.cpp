// SPDX-License-Identifier: Apache-2.0
// Writes of very many small pages: their posts wait for one another for longer than a rail may be silent.
// Time is the number of steps.
#include "rail/engine.hpp"
#include "rail/tcp/provider.hpp"
#include "unit/rail/two_engines.hpp"
#include "unit/rail/wait_for_nics.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using test_engines::EnginePair;
using test_engines::Side;
using test_engines::Writes;

class StepClock final : public Clock {
 public:
  [[nodiscard]] std::uint64_t now_ns() const noexcept override { return now_ns_; }
  void advance(std::chrono::nanoseconds by) { now_ns_ += static_cast<std::uint64_t>(by.count()); }

 private:
  std::uint64_t now_ns_ = 1'000'000'000;
};

class SteppedEngines final : public EnginePair {
 public:
  explicit SteppedEngines(std::chrono::nanoseconds step) : step_(step) {
    for (int side = 0; side < 2; ++side) {
      std::vector<std::unique_ptr<Provider>> providers;
      for (const char* at : {"127.0.0.1", "127.0.0.2"}) {
        auto opened = tcp::TcpProvider::open(at);
        EXPECT_TRUE(opened) << opened.error().message;
        nics_.push_back(opened->get());
        providers.push_back(std::move(*opened));
      }
      open(side, std::move(providers), clock_, {});
    }
  }
  ~SteppedEngines() override {
    for (Side& side : sides) side.engine.reset();
  }
  void step() override {
    std::size_t events = 0;
    for (Side& side : sides) events += side.engine->poll();
    if (events == 0) sleep_until_ready();
    clock_.advance(busy_);
    passed += busy_;
  }
  [[nodiscard]] bool both_live() const {
    return sides[0].link->live_rails() == 2 && sides[1].link->live_rails() == 2;
  }
  /// From now on each step takes its time.
  void begin() { busy_ = step_; }

  std::chrono::nanoseconds passed = 0ns;

 private:
  /// So that no step passes in vain while the system moves bytes.
  void sleep_until_ready() { test::wait_for_nics(nics_); }

  const std::chrono::nanoseconds step_;
  std::chrono::nanoseconds busy_ = 0ns;
  StepClock clock_;
  std::vector<tcp::TcpProvider*> nics_;  // of the engines
};

constexpr std::uint64_t page_bytes = 3;

/// Pages in reverse order at the target, counted one by one.
void write_many(std::uint64_t pages, std::chrono::nanoseconds step) {
  SteppedEngines engines(step);
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return engines.both_live(); }));
  Writes writes(engines, pages * page_bytes);
  engines.begin();
  ASSERT_TRUE(writes.post(pages, page_bytes, {Spread::free, 0, CountedAt{}, CountBy::page}).ok());
  engines.sides[0].engine->poll();
  EXPECT_LE(engines.sides[0].link->held(), 1U + 16) << "16 posts of 1024 pages in one pass";
  bool lived = true;
  ASSERT_TRUE(engines.until([&] {
    lived = lived && engines.both_live();
    return !lived || (writes.all_ended() && writes.all_counted());
  }));
  EXPECT_TRUE(lived) << "a rail was dropped that was at work";
  for (const auto& [request, status] : engines.sides[0].ends) EXPECT_TRUE(status.ok()) << request->why();
  writes.check_counts();
  writes.check_quiet();
  // Much longer than a rail may be silent, else this has shown nothing.
  EXPECT_GT(engines.passed, 8s);
}

TEST(RailManyPages, rails_that_are_at_work_live_although_their_posts_wait_long) {
  write_many(160'000, 150ms);
}

TEST(RailManyPages_slow, a_million_pages_are_one_write) { write_many(1'000'000, 150ms); }

}  // namespace
}  // namespace headrace::rail
