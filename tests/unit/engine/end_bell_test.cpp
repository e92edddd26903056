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

/// One thread ends a request while another begins to listen for the end; the interval between the two varies
/// from round to round.
class EndBellTest : public ::testing::Test {
 protected:
  EndBellTest() : engine(Engine::open({.name = "bell", .runtime_dir = folder.path()}, logger).value()) {}

  /// `listen` runs concurrently with the end. `heard` runs after both, in the rounds in which the request had
  /// not ended yet when `listen` returned.
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
        round->bell.ring(*engine, {}, round->state, RequestState::done, 1);
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
    EXPECT_GT(too_early, 0) << "no round listened before the end";
  }

  Logger logger;
  const test::TemporaryFolder folder;
  const std::shared_ptr<Engine> engine;
};

TEST_F(EndBellTest, an_eventfd_made_before_the_end_is_readable_after_it) {
  race([](EndBell& bell, const auto&) { ASSERT_TRUE(bell.event_fd()); },
       [](EndBell& bell) {
         pollfd waiting{bell.event_fd().value(), POLLIN, 0};
         return ::poll(&waiting, 1, 0) == 1;
       });
}

TEST_F(EndBellTest, a_callback_set_before_the_end_runs_once) {
  std::shared_ptr<std::atomic<int>> calls;
  race(
      [&](EndBell& bell, const auto& state) {
        calls = std::make_shared<std::atomic<int>>(0);
        bell.on_done([calls](Status) { ++*calls; }, state, 1);
      },
      [&](EndBell&) {
        const Deadline deadline = Deadline::after(std::chrono::seconds(10));
        while (*calls == 0 && !deadline.expired()) std::this_thread::yield();
        return *calls == 1;
      });
}

TEST_F(EndBellTest, a_callback_set_after_an_end_runs_at_the_next_end_only) {
  EndBell bell;
  std::atomic<RequestState> state{RequestState::posted};
  ASSERT_TRUE(bell.event_fd());
  bell.ring(*engine, {}, state, RequestState::done, 1);
  std::atomic<int> calls{0};
  bell.on_done([&](Status) { ++calls; }, state, 1);
  state = RequestState::posted;
  bell.ring(*engine, {}, state, RequestState::done, 2);
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (calls == 0 && !deadline.expired()) std::this_thread::yield();
  engine->close();  // no callback runs after close
  EXPECT_EQ(calls, 1);
}

TEST_F(EndBellTest, a_callback_set_for_the_second_post_during_the_first_end_runs_for_the_second_only) {
  constexpr int rounds = 3000;
  EndBell bell;
  std::atomic<RequestState> state{RequestState::posted};
  std::atomic<int> calls{0}, asked_for{0}, rung{0};
  ASSERT_TRUE(bell.event_fd());
  {
    // Another thread takes the lock of the bell again and again, so `ring` has to wait for the lock after the
    // new state is visible.
    const std::jthread in_the_way([&](const std::stop_token& stop) {
      for (int locked = 1; !stop.stop_requested(); ++locked) {
        (void)bell.event_fd();
        if (locked % 100 == 0) std::this_thread::yield();
      }
    });
    const std::jthread ringer([&](const std::stop_token& stop) {
      int idle = 0;
      while (!stop.stop_requested()) {
        if (asked_for.load() == rung.load()) {
          if (++idle % 100 == 0) std::this_thread::yield();
          continue;
        }
        bell.ring(*engine, {}, state, RequestState::done, 2 * static_cast<std::uint64_t>(rung) + 1);
        rung.fetch_add(1);
      }
    });
    for (int i = 0; i < rounds; ++i) {
      const std::uint64_t second = 2 * static_cast<std::uint64_t>(i) + 2;
      bell.on_done(nullptr, state, second - 2);
      state.store(RequestState::posted);
      asked_for.fetch_add(1);
      for (int looks = 1; !has_ended(state.load()); ++looks)
        if (looks % 1000 == 0) std::this_thread::yield();  // three threads spin, maybe on one core
      state.store(RequestState::posted);
      bell.on_done([&](Status) { ++calls; }, state, second);
      while (rung.load() == i) std::this_thread::yield();
      bell.ring(*engine, {}, state, RequestState::done, second);
    }
  }
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (calls < rounds && !deadline.expired()) std::this_thread::yield();
  engine->close();  // no callback runs after close
  EXPECT_EQ(calls, rounds);
}

}  // namespace
}  // namespace headrace::engine
