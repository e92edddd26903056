// SPDX-License-Identifier: Apache-2.0
// Closing an engine at moments that the test chooses: beside a post, a hello of a peer, an end.
#include "engine/engine.hpp"
#include "support/hook_clock.hpp"
#include "support/temporary_folder.hpp"
#include "unit/engine/deaf_backend.hpp"
#include "unit/engine/linked_backend.hpp"
#include "unit/engine/parts.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

class ClosingTest : public testing::Test {
 protected:
  ClosingTest() {
    add_linked(*engine, *Deaf::table());
    const MemoryRange range{memory.data(), memory.size()};
    region = engine->regions().add({&range, 1}, {}, {}).value().front().id;
  }
  ~ClosingTest() override { engine->close(); }

  std::shared_ptr<RequestCore> make() {
    RequestPlan plan;
    plan.local = engine->lists().prepare(Side::local(), UniformPages{region, 0, 64, 64, 1}).value();
    plan.remote = engine->lists().prepare(Side::remote("alone"), UniformPages{region, 64, 64, 64, 1}).value();
    plan.count = 1;
    return engine->requests().make(std::move(plan)).value();
  }
  /// A link that is not ready: its end is the middle of a close.
  void connect() {
    wire::Metadata m;
    m.name = "there";
    m.incarnation = 5;
    m.version = 1;
    m.backends.push_back({"deaf", "1", "info"});
    ASSERT_TRUE(engine->peers().import(std::move(m)).ok());
    ASSERT_EQ(engine->peers().connect("there", 0ns, {}).code(), Code::timed_out);
  }

  Logger logger;
  const test::TemporaryFolder folder;
  test::HookClock clock;
  std::shared_ptr<Engine> engine =
      Engine::open({.name = "alone", .runtime_dir = folder.path()}, logger, clock).value();
  std::array<std::byte, 128> memory{};
  RegionId region{};
};

TEST_F(ClosingTest, a_post_that_begins_after_the_others_were_canceled_is_refused) {
  connect();
  const auto request = make();
  Deaf::may_close = false;
  std::jthread closing;
  clock.at_reading(1, [&] {
    closing = std::jthread([&] { engine->close(); });
    while (Deaf::closing == 0)
      std::this_thread::yield();  // what was posted is canceled, links are being closed
  });
  EXPECT_EQ(request->post(nullptr).code, Code::invalid_argument);
  Deaf::may_close = true;
  closing.join();
  EXPECT_EQ(Deaf::posts, 0);
  EXPECT_EQ(request->state(), RequestState::prepared);
}

TEST_F(ClosingTest, a_thread_that_waits_for_a_post_gets_canceled) {
  const auto request = make();
  ASSERT_TRUE(request->post(nullptr).ok());
  std::atomic<bool> waits = false;
  std::jthread waiting([&] {
    waits = true;
    EXPECT_EQ(request->wait(forever).code, Code::canceled);
  });
  while (!waits) std::this_thread::yield();
  engine->close();
  waiting.join();
  EXPECT_EQ(request->post(nullptr).code, Code::invalid_argument);
  EXPECT_EQ(request->wait(0ns).code, Code::canceled) << "the end of the post stays";
}

const headrace_backend_v1 backend_of_closing = recording_table("first");

/// Tells whether the gate was held when a link was added.
struct GateWatcher final : LinkWatcher {
  explicit GateWatcher(const CallGate& its_calls) : calls(its_calls) {}
  void link_added(const std::shared_ptr<Link>&) override { inside = !calls.empty(); }
  const CallGate& calls;
  bool inside = false;
};

TEST(Closing, a_close_waits_for_a_link_that_a_peer_is_making_and_finds_it) {
  Parts parts;
  BackendInstance& backend = parts.add(backend_of_closing);
  GateWatcher watcher(parts.calls);
  parts.links.watch(watcher);
  EXPECT_NE(parts.peers.accepted(backend, &Recorded::handle, "there", 8), 0U);
  EXPECT_TRUE(watcher.inside);
  (void)parts.calls.shut();
  EXPECT_EQ(parts.peers.accepted(backend, &Recorded::handle, "there", 8), 0U);
}

}  // namespace
}  // namespace headrace::engine
