// SPDX-License-Identifier: Apache-2.0
#include "engine/arrival_counters.hpp"

#include "support/fake_cuda.hpp"
#include "support/open_descriptors.hpp"

#include <gtest/gtest.h>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

class ArrivalCountersTest : public ::testing::Test {
 protected:
  ~ArrivalCountersTest() override { callbacks.close(); }
  static bool readable(int fd, int limit_ms) {
    pollfd one{fd, POLLIN, 0};
    return ::poll(&one, 1, limit_ms) == 1;
  }
  /// The fake's GPU memory is host memory.
  static std::uint64_t seen(const gpu::GpuWord& word) {
    return reinterpret_cast<const std::atomic<std::uint64_t>*>(word.address())->load();
  }

  Logger logger;
  Log log{logger, "engine"};
  Telemetry telemetry{steady_clock};
  CallGate calls{"agent"};
  std::unique_ptr<Progress> progress = Progress::open(steady_clock).value();
  CallbackQueue callbacks;
  ArrivalCounters counters{calls, *progress, callbacks, telemetry, log};
};

TEST_F(ArrivalCountersTest, arrivals_before_the_counter_was_opened_are_in_it) {
  counters.add({1, 2}, 3);
  const auto count = counters.open({1, 2}).value();
  EXPECT_EQ(count->value(), 3U);
  EXPECT_EQ(counters.open({1, 3}).value()->value(), 0U) << "another scope";
  EXPECT_EQ(counters.open({2, 2}).value()->value(), 0U) << "another value";
  counters.add({1, 2}, 1);
  EXPECT_EQ(count->value(), 4U);
  EXPECT_EQ(counters.open({1, 2}).value(), count);
}

TEST_F(ArrivalCountersTest, a_wait_returns_once_the_count_is_reached_and_when_time_is_up) {
  const auto count = counters.open({}).value();
  EXPECT_TRUE(counters.wait(*count, 0, 0ns).ok());
  EXPECT_EQ(counters.wait(*count, 1, 0ns).code, Code::timed_out);
  std::jthread adding([&] {
    for (int i = 0; i < 1000; ++i) counters.add({}, 1);
  });
  EXPECT_TRUE(counters.wait(*count, 1000, 30s).ok());
  EXPECT_EQ(count->value(), 1000U);
}

TEST_F(ArrivalCountersTest, a_close_ends_waits_and_wakes_those_that_watch_descriptors) {
  const auto count = counters.open({}).value();
  const int fd = counters.event_fd(count, 5).value();
  EXPECT_FALSE(readable(fd, 0));
  std::jthread closing([&] {
    (void)calls.shut();
    counters.close();
    progress->event();
  });
  EXPECT_EQ(counters.wait(*count, 1, 30s).code, Code::canceled);
  EXPECT_TRUE(readable(fd, 30'000));
  closing.join();
  EXPECT_EQ(counters.open({}).code(), Code::invalid_argument);
  EXPECT_EQ(counters.event_fd(count, 5).code(), Code::invalid_argument);
  ::close(fd);
}

TEST_F(ArrivalCountersTest, a_callback_and_a_descriptor_are_told_once_each_at_their_count) {
  const auto count = counters.open({}).value();
  std::atomic<int> first{0}, second{0};
  counters.on_reached(*count, 2, [&] { ++first; });
  counters.on_reached(*count, 4, [&] { ++second; });
  const int fd = counters.event_fd(count, 3).value();
  counters.add({}, 1);
  EXPECT_FALSE(readable(fd, 0));
  counters.add({}, 2);
  EXPECT_TRUE(readable(fd, 30'000));
  while (first == 0) std::this_thread::yield();
  counters.add({}, 5);
  while (second == 0) std::this_thread::yield();
  std::atomic<bool> late{false};
  counters.on_reached(*count, 1, [&] { late = true; });  // reached already; behind the others in the queue
  while (!late) std::this_thread::yield();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
  ::close(fd);
}

TEST_F(ArrivalCountersTest, descriptors_that_callers_have_closed_are_closed_here_too) {
  const auto one = counters.open({1, 0}).value(), other = counters.open({2, 0}).value();
  std::vector<UniqueFd> kept;
  for (std::uint64_t i = 1; i <= 5; ++i) kept.emplace_back(counters.event_fd(one, 1000 + i).value());
  const std::size_t before = test::open_descriptors();
  for (std::uint64_t i = 1; i <= 200; ++i) {
    ::close(counters.event_fd(one, i).value());
    ::close(counters.event_fd(other, i).value());
    ::close(counters.event_fd(counters.open({0, static_cast<std::uint32_t>(i)}).value(), 1).value());
  }
  EXPECT_LE(test::open_descriptors(), before + 20);
  counters.add({1, 0}, 1003);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(readable(kept[i].get(), 0), i < 3) << i;
}

TEST_F(ArrivalCountersTest, a_descriptor_becomes_readable_although_a_forked_child_has_a_copy_of_it) {
  const auto count = counters.open({}).value();
  const UniqueFd fd(counters.event_fd(count, 1).value());
  const pid_t child = ::fork();
  if (child == 0)
    for (;;) ::pause();
  counters.add({}, 1);
  EXPECT_TRUE(readable(fd.get(), 0));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(ArrivalCountersTest, words_in_host_and_gpu_memory_follow_the_count) {
  cuda::FakeCuda fake({{}, {}});
  const gpu::GpuSource source{[&] { return fake.load(); }, {}};
  ArrivalCounters with_gpus{calls, *progress, callbacks, telemetry, log, source};
  const auto count = with_gpus.open({}).value();
  with_gpus.add({}, 2);
  const auto* const host = &count->word();
  auto word = with_gpus.gpu_word(count, 1).value();
  EXPECT_EQ(word->device(), 1);
  EXPECT_EQ(seen(*word), 2U) << "what had arrived before";
  std::vector<std::jthread> adding;
  for (int t = 0; t < 4; ++t)
    adding.emplace_back([&] {
      for (int i = 0; i < 500; ++i) with_gpus.add({}, 1);
    });
  adding.clear();
  EXPECT_EQ(host->load(), 2002U);
  EXPECT_EQ(seen(*word), 2002U);
  const int stores = fake.calls("cuStreamWriteValue64");
  word.reset();
  with_gpus.add({}, 1);
  EXPECT_EQ(fake.calls("cuStreamWriteValue64"), stores) << "a released word is not written";
}

TEST_F(ArrivalCountersTest, words_are_made_and_released_while_the_count_grows) {
  cuda::FakeCuda fake;
  ArrivalCounters with_gpus{calls, *progress, callbacks, telemetry, log, {[&] { return fake.load(); }, {}}};
  const auto count = with_gpus.open({}).value();
  std::jthread adding([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) with_gpus.add({}, 1);
  });
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t before = count->value();
    const auto word = with_gpus.gpu_word(count, 0).value();
    EXPECT_GE(seen(*word), before);
  }
}

TEST_F(ArrivalCountersTest, a_word_needs_a_gpu_that_is_there) {
  cuda::FakeCuda fake;
  ArrivalCounters with_gpus{calls, *progress, callbacks, telemetry, log, {[&] { return fake.load(); }, {}}};
  const auto count = with_gpus.open({}).value();
  EXPECT_EQ(with_gpus.gpu_word(count, 7).code(), Code::invalid_argument);
  fake.fail("cuStreamWriteValue64", cuda::Outcome::not_supported);
  EXPECT_EQ(with_gpus.gpu_word(count, 0).code(), Code::not_supported);
  (void)calls.shut();
  EXPECT_EQ(with_gpus.gpu_word(count, 0).code(), Code::invalid_argument);
}

TEST_F(ArrivalCountersTest, immediates_that_nobody_opens_are_kept_up_to_a_limit) {
  for (std::uint32_t i = 0; i < ArrivalCounters::most_unopened; ++i) counters.add({i, 0}, 1);
  counters.add({0, 1}, 7);
  EXPECT_EQ(telemetry.counter("counters.dropped").value(), 7U);
  counters.add({5, 0}, 1);
  EXPECT_EQ(counters.open({5, 0}).value()->value(), 2U) << "known ones go on";
  counters.add({0, 1}, 1);
  EXPECT_EQ(counters.open({0, 1}).value()->value(), 1U) << "an opened one made room";
}

TEST_F(ArrivalCountersTest, a_peer_that_fills_its_places_leaves_those_of_others) {
  for (std::uint32_t i = 0; i <= ArrivalCounters::most_unopened; ++i) counters.add({i, 0}, 1, "stranger");
  EXPECT_EQ(telemetry.counter("counters.dropped").value(), 1U);
  counters.add({0, 1}, 3, "peer");
  EXPECT_EQ(counters.open({0, 1}).value()->value(), 3U);
  counters.forget("stranger");
  EXPECT_FALSE(counters.add_known({7, 0}, 1)) << "nothing of it is kept";
  EXPECT_TRUE(counters.add_known({0, 1}, 1));
  counters.add({7, 0}, 1, "stranger");
  EXPECT_EQ(counters.open({7, 0}).value()->value(), 1U) << "it may come again";
}

TEST_F(ArrivalCountersTest, counts_from_many_threads_are_all_there_and_the_watch_meets_the_last) {
  const auto count = counters.open({}).value();
  constexpr std::uint64_t threads = 4, each = 5000;
  const int fd = counters.event_fd(count, threads * each).value();
  std::vector<std::jthread> adding;
  for (std::uint64_t t = 0; t < threads; ++t)
    adding.emplace_back([&] {
      for (std::uint64_t i = 0; i < each; ++i) counters.add({}, 1);
    });
  EXPECT_TRUE(readable(fd, 30'000));
  EXPECT_EQ(count->value(), threads * each);
  ::close(fd);
}

}  // namespace
}  // namespace headrace::engine
