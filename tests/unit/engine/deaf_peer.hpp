// SPDX-License-Identifier: Apache-2.0
// An engine that is connected to a peer over the backend that the test plays: nothing ends by itself, and no
// thread but the test's runs the progress.
#pragma once

#include "engine/engine.hpp"
#include "support/temporary_folder.hpp"
#include "unit/engine/deaf_backend.hpp"
#include "unit/engine/linked_backend.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>

namespace headrace::engine {

class DeafPeer : public testing::Test {
 protected:
  DeafPeer() {
    only_this_thread.emplace(
        *engine);  // before a thread waits: the clock stands still, and it would seem to drive
    add_linked(*engine, *Deaf::table());
    const MemoryRange range{memory.data(), memory.size()};
    ours = engine->regions().add({&range, 1}, {}, {}).value().front().id;
    EXPECT_TRUE(engine->peers().import(peers_regions()).ok());
    EXPECT_EQ(engine->peers().connect("there", std::chrono::nanoseconds(0), {}).code(), Code::timed_out);
    Deaf::make_ready();
  }
  ~DeafPeer() override {
    only_this_thread.reset();
    engine->close();
  }

  /// Regions 1 and 2.
  static wire::Metadata peers_regions() {
    wire::Metadata m;
    m.name = "there";
    m.incarnation = 5;
    m.version = 2;
    m.backends.push_back({"deaf", "1", "info"});
    m.ids = {1, 2};
    m.addresses = {0x1000, 0x2000};
    m.lengths = {64, 64};
    m.kinds = {HEADRACE_DRAM, HEADRACE_DRAM};
    m.masks = {1, 1};
    return m;
  }
  std::shared_ptr<RequestCore> make(std::uint32_t region) {
    RequestPlan plan;
    plan.local = engine->lists().prepare(Side::local(), UniformPages{ours, 0, 64, 64, 1}).value();
    plan.remote =
        engine->lists().prepare(Side::remote("there"), UniformPages{{region}, 0, 64, 64, 1}).value();
    plan.count = 1;
    return engine->requests().make(std::move(plan)).value();
  }
  /// As if the peer had sent it.
  void receive(const wire::AgentMessage& message) {
    engine->received(Deaf::link, HEADRACE_CHANNEL_AGENT, *wire::encode(message));
    (void)engine->progress().poll();
  }

  Logger logger;
  const test::TemporaryFolder folder;
  FakeClock clock;
  std::shared_ptr<Engine> engine =
      Engine::open({.name = "here", .runtime_dir = folder.path()}, logger, clock).value();
  std::array<std::byte, 64> memory{};
  RegionId ours{};
  std::optional<HeldProgress> only_this_thread;  // runs the progress, and those that the test makes
};

}  // namespace headrace::engine
