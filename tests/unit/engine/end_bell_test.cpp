// SPDX-License-Identifier: Apache-2.0
#include "engine/end_bell.hpp"
#include "engine/engine.hpp"
#include "engine/transfer.hpp"
#include "support/temporary_folder.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

namespace headrace::engine {
namespace {

/// A request's end on one thread, and somebody who begins to listen on another: over and over, at all
/// distances.
class EndBellTest : public ::testing::Test {
 protected:
  EndBellTest() : engine(Engine::open({.name = "bell", .runtime_dir = folder.path()}, logger).value()) {}

  /// `listen` runs beside the ring; `heard` after both, for those who saw no end when they had begun to
  /// listen.
  template <class Listen, class Heard>
  void race(Listen listen, Heard heard) {
    struct Round {
      EndBell bell;
      std::atomic<RequestState> state{RequestState::posted};
    };
    constexpr int rounds = 10000;
    std::atomic<Round*> present{nullptr};
    std::atomic<int> rung{0};
    const std::jthread ringer([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        Round* const round = present.exchange(nullptr);
        if (round == nullptr) {
          std::this_thread::yield();
          continue;
        }
        for (int spin = rung % 97; spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
        round->bell.ring(*engine, {}, round->state, RequestState::done);
        rung.fetch_add(1);
      }
    });
    int too_early = 0;
    for (int i = 0; i < rounds; ++i) {
      Round round;
      present.store(&round);
      for (int spin = i % 89; spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
      listen(round.bell, round.state);
      const bool must_hear = !has_ended(round.state.load());
      while (rung.load() == i) std::this_thread::yield();
      if (!must_hear) continue;
      ++too_early;
      ASSERT_TRUE(heard(round.bell)) << "round " << i;
    }
    EXPECT_GT(too_early, 0) << "nobody ever listened before the end";
  }

  Logger logger;
  const test::TemporaryFolder folder;
  const std::shared_ptr<Engine> engine;
};

TEST_F(EndBellTest, whoever_made_a_descriptor_before_the_end_finds_it_readable) {
  race([](EndBell& bell, const auto&) { ASSERT_TRUE(bell.event_fd()); },
       [](EndBell& bell) {
         pollfd waiting{bell.event_fd().value(), POLLIN, 0};
         return ::poll(&waiting, 1, 0) == 1;
       });
}

TEST_F(EndBellTest, whoever_asked_to_be_called_before_the_end_is_called) {
  std::shared_ptr<std::atomic<int>> calls;
  race(
      [&](EndBell& bell, const auto& state) {
        calls = std::make_shared<std::atomic<int>>(0);
        bell.on_done([calls](Status) { ++*calls; }, state);
      },
      [&](EndBell&) {
        const Deadline deadline = Deadline::after(std::chrono::seconds(10));
        while (*calls == 0 && !deadline.expired()) std::this_thread::yield();
        return *calls == 1;
      });
}

TEST_F(EndBellTest, whoever_asks_after_the_end_is_called_at_the_next_one_alone) {
  EndBell bell;
  std::atomic<RequestState> state{RequestState::posted};
  ASSERT_TRUE(bell.event_fd());
  bell.ring(*engine, {}, state, RequestState::done);
  std::atomic<int> calls{0};
  bell.on_done([&](Status) { ++calls; }, state);
  state = RequestState::posted;
  bell.ring(*engine, {}, state, RequestState::done);
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (calls == 0 && !deadline.expired()) std::this_thread::yield();
  engine->close();  // nothing more is called
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace headrace::engine
