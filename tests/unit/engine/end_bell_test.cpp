// SPDX-License-Identifier: Apache-2.0
#include "engine/end_bell.hpp"
#include "engine/steady_clock.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace headrace::engine {
namespace {

/// One thread ends a request while another begins to listen for the end; the interval between the two varies
/// from round to round.
class EndBellTest : public ::testing::Test {
 protected:
  static constexpr int rounds_of_a_day = 1500, many_rounds = 10'000;

  EndBellTest() : progress(Progress::open(steady_clock).value()) {}

  void ring(EndBell& bell, PostLife& life) { bell.ring(callbacks, *progress, {}, life, RequestState::done); }
  static void begin(PostLife& life) {
    RequestState before{};
    EXPECT_TRUE(life.begin(before));
  }

  /// `listen` runs concurrently with the end. `heard` runs after both, in the rounds in which the request had
  /// not ended yet when `listen` returned.
  template <class Listen, class Heard>
  void race(int rounds, Listen listen, Heard heard) {
    struct Round {
      EndBell bell;
      PostLife life;
    };
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
        ring(round->bell, round->life);
        rung.fetch_add(1);
      }
    });
    int too_early = 0;
    for (int i = 0; i < rounds; ++i) {
      Round round;
      begin(round.life);
      present.store(&round);
      for (int spin = i % 89; spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
      listen(round.bell, round.life);
      const bool must_hear = !round.life.ended();
      while (rung.load() == i) std::this_thread::yield();
      if (!must_hear) continue;
      ++too_early;
      ASSERT_TRUE(heard(round.bell)) << "round " << i;
    }
    EXPECT_GT(too_early, 0) << "no round listened before the end";
  }

  void make_eventfds(int rounds) {
    race(
        rounds, [](EndBell& bell, const PostLife&) { ASSERT_TRUE(bell.event_fd()); },
        [](EndBell& bell) {
          pollfd waiting{bell.event_fd().value(), POLLIN, 0};
          return ::poll(&waiting, 1, 0) == 1;
        });
  }
  void enter_queues(int rounds);
  void set_callbacks(int rounds);
  void set_callbacks_for_the_second_post(int rounds);

  CallbackQueue callbacks;
  const std::unique_ptr<Progress> progress;
};

/// The same races in more rounds.
// NOLINTNEXTLINE(readability-identifier-naming): the end of the name is a label
class EndBellTest_many_rounds : public EndBellTest {};

TEST_F(EndBellTest, an_eventfd_made_before_the_end_is_readable_after_it) { make_eventfds(rounds_of_a_day); }
TEST_F(EndBellTest_many_rounds, an_eventfd_made_before_the_end_is_readable_after_it) {
  make_eventfds(many_rounds);
}

std::shared_ptr<CompletedNumbers> open_queue() {
  return std::make_shared<CompletedNumbers>(EventFd::create().value());
}

bool is_readable(const CompletedNumbers& queue) {
  pollfd waiting{queue.event_fd(), POLLIN, 0};
  return ::poll(&waiting, 1, 0) == 1;
}

void EndBellTest::enter_queues(int rounds) {
  const auto queue = open_queue();
  std::uint64_t number = 0;
  race(
      rounds, [&](EndBell& bell, const PostLife& life) { bell.enqueue(queue, ++number, life); },
      [&](EndBell&) {
        const std::vector<std::uint64_t> numbers = queue->take();  // and those of rounds not looked at
        return !numbers.empty() && numbers.back() == number &&
               std::adjacent_find(numbers.begin(), numbers.end()) == numbers.end();
      });
}

TEST_F(EndBellTest, a_number_enters_its_queue_once_before_or_during_the_end) {
  enter_queues(rounds_of_a_day);
}
TEST_F(EndBellTest_many_rounds, a_number_enters_its_queue_once_before_or_during_the_end) {
  enter_queues(many_rounds);
}

TEST_F(EndBellTest, a_number_enters_its_queue_at_the_end_of_the_post_in_flight_alone) {
  const auto queue = open_queue();
  EndBell bell;
  PostLife life;
  bell.enqueue(queue, 1, life);
  EXPECT_TRUE(is_readable(*queue));
  EXPECT_EQ(queue->take(), std::vector<std::uint64_t>{1}) << "no post is in flight";
  begin(life);
  bell.enqueue(queue, 2, life);
  bell.enqueue(queue, 3, life);
  EXPECT_FALSE(is_readable(*queue));
  EXPECT_TRUE(queue->take().empty());
  ring(bell, life);
  EXPECT_TRUE(is_readable(*queue));
  EXPECT_EQ(queue->take(), (std::vector<std::uint64_t>{2, 3}));
  EXPECT_FALSE(is_readable(*queue));
  begin(life);
  ring(bell, life);
  EXPECT_TRUE(queue->take().empty());
}

TEST_F(EndBellTest, a_queue_stays_readable_while_numbers_are_left_in_it) {
  const auto queue = open_queue();
  for (std::uint64_t number = 1; number <= 3; ++number) queue->push(number);
  std::array<std::uint64_t, 2> room{};
  EXPECT_EQ(queue->take(std::span<std::uint64_t>()), 0);
  EXPECT_EQ(queue->take(room), 2);
  EXPECT_EQ(room, (std::array<std::uint64_t, 2>{1, 2}));
  EXPECT_TRUE(is_readable(*queue));
  queue->push(4);
  EXPECT_EQ(queue->take(), (std::vector<std::uint64_t>{3, 4}));
  EXPECT_FALSE(is_readable(*queue));
  EXPECT_EQ(queue->take(room), 0);
  queue->push(5);
  EXPECT_TRUE(is_readable(*queue));
}

TEST_F(EndBellTest, a_number_enters_its_queue_when_the_post_is_taken_back) {
  const auto queue = open_queue();
  EndBell bell;
  PostLife life;
  begin(life);
  bell.enqueue(queue, 1, life);
  life.set(RequestState::prepared);
  bell.taken_back();
  EXPECT_EQ(queue->take(), std::vector<std::uint64_t>{1});
}

TEST_F(EndBellTest, a_queue_that_is_gone_is_told_nothing_and_has_no_descriptor) {
  auto queue = open_queue();
  const int fd = queue->event_fd();
  EndBell bell;
  PostLife life;
  begin(life);
  bell.enqueue(queue, 1, life);
  queue.reset();
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
  ring(bell, life);
}

void EndBellTest::set_callbacks(int rounds) {
  std::shared_ptr<std::atomic<int>> calls;
  race(
      rounds,
      [&](EndBell& bell, const PostLife& life) {
        calls = std::make_shared<std::atomic<int>>(0);
        bell.on_done([calls](Status) { ++*calls; }, life);
      },
      [&](EndBell&) {
        const Deadline deadline = Deadline::after(std::chrono::seconds(10));
        while (*calls == 0 && !deadline.expired()) std::this_thread::yield();
        return *calls == 1;
      });
}

TEST_F(EndBellTest, a_callback_set_before_the_end_runs_once) { set_callbacks(rounds_of_a_day); }
TEST_F(EndBellTest_many_rounds, a_callback_set_before_the_end_runs_once) { set_callbacks(many_rounds); }

TEST_F(EndBellTest, a_callback_set_after_an_end_runs_at_the_next_end_only) {
  EndBell bell;
  PostLife life;
  begin(life);
  ASSERT_TRUE(bell.event_fd());
  ring(bell, life);
  std::atomic<int> calls{0};
  bell.on_done([&](Status) { ++calls; }, life);
  begin(life);
  ring(bell, life);
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (calls == 0 && !deadline.expired()) std::this_thread::yield();
  callbacks.close();  // no callback runs after close
  EXPECT_EQ(calls, 1);
}

void EndBellTest::set_callbacks_for_the_second_post(int rounds) {
  EndBell bell;
  PostLife life;
  begin(life);
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
        ring(bell, life);
        rung.fetch_add(1);
      }
    });
    for (int i = 0; i < rounds; ++i) {
      bell.on_done(nullptr, life);
      if (i > 0) begin(life);
      asked_for.fetch_add(1);
      for (int looks = 1; !life.ended(); ++looks)
        if (looks % 1000 == 0) std::this_thread::yield();  // three threads spin, maybe on one core
      begin(life);
      bell.on_done([&](Status) { ++calls; }, life);
      while (rung.load() == i) std::this_thread::yield();
      ring(bell, life);
    }
  }
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (calls < rounds && !deadline.expired()) std::this_thread::yield();
  callbacks.close();  // no callback runs after close
  EXPECT_EQ(calls, rounds);
}

TEST_F(EndBellTest, a_callback_set_for_the_second_post_during_the_first_end_runs_for_the_second_only) {
  set_callbacks_for_the_second_post(rounds_of_a_day);
}
TEST_F(EndBellTest_many_rounds,
       a_callback_set_for_the_second_post_during_the_first_end_runs_for_the_second_only) {
  set_callbacks_for_the_second_post(many_rounds);
}

}  // namespace
}  // namespace headrace::engine
