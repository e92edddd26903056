// SPDX-License-Identifier: Apache-2.0
// The thread that runs progress while others wait.
#include "engine/progress.hpp"

#include "backends/fake/backend.hpp"
#include "support/sleeping_thread.hpp"
#include "support/temporary_folder.hpp"
#include "unit/engine/silent_events.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

/// While the waiter is awake, this backend keeps the progress thread inside `arm`, so that thread cannot give
/// up running progress. Only a `progress` call of the waiter's own thread sees the end.
struct Held {
  static inline std::atomic<bool> armed = false;
  static inline std::atomic<bool> let_go = false;
  static inline std::atomic<bool> done = false;
  static inline std::atomic<pid_t> waiter = 0;

  static const headrace_backend_v1* table() {
    static headrace_backend_v1 t = *plugin::table<fake::FakeBackend>();
    t.progress = [](void*) -> std::uint32_t {
      if (!let_go || ::gettid() != waiter) return 0;
      done = true;
      return 1;
    };
    t.arm = [](void*, std::int32_t on) -> std::uint32_t {
      if (on != 0 && ::gettid() != waiter) armed = true;
      if (on == 0 && waiter != 0 && ::gettid() != waiter && !let_go) {
        while (!test::sleeps(waiter)) std::this_thread::yield();
        let_go = true;
      }
      return 0;
    };
    return &t;
  }
};

/// A backend that counts its progress calls.
struct Counted {
  static inline std::atomic<int> passes = 0;

  static const headrace_backend_v1* table() {
    static headrace_backend_v1 t = *plugin::table<fake::FakeBackend>();
    t.progress = [](void*) -> std::uint32_t {
      ++passes;
      return 0;
    };
    return &t;
  }
};

Result<std::unique_ptr<BackendInstance>> open(const headrace_backend_v1* table, SilentEvents& events,
                                              const test::TemporaryFolder& folder) {
  InstanceArgs args;
  args.agent_name = "a";
  args.runtime_dir = folder.path();
  for (const headrace_option_v1& row : fake::FakeBackend::options())
    args.settings.emplace_back(row.name, row.default_value);
  return BackendInstance::open(table, args, events);
}

TEST(Timers, one_that_is_added_during_a_pass_waits_for_the_next_pass) {
  Timers timers;
  int runs = 0;
  std::function<void()> again = [&] {
    ++runs;
    timers.add(10, again);
  };
  timers.add(3, again);
  bool later = false;
  timers.add(5, [&] { later = true; });
  timers.run_due(10);
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(later);
  timers.run_due(10);
  EXPECT_EQ(runs, 2);
}

TEST(Progress, a_waiter_whose_own_polls_reach_the_end_skips_progress_that_ran_just_before) {
  SilentEvents events;
  const test::TemporaryFolder folder;
  const auto instance = open(Counted::table(), events, folder).value();
  const auto progress = Progress::open(steady_clock).value();
  ASSERT_TRUE(progress->add(*instance).ok());
  // "Just before" is a short time: the machine may take longer between two lines, but not in each of many
  // tries.
  bool alone = false;
  for (int tries = 0; tries < 1000 && !alone; ++tries) {
    (void)progress->poll();
    Counted::passes = 0;
    int helps = 0;
    const auto help = [&] { return ++helps < 3; };  // the third call sees the end
    EXPECT_TRUE(progress->wait([&] { return helps == 3; }, help, Deadline::after(60s)));
    alone = Counted::passes == 0;
  }
  EXPECT_TRUE(alone);
  // A waiter whose own polls find nothing runs progress.
  EXPECT_FALSE(progress->wait([] { return false; }, [] { return false; }, Deadline::after(1ms)));
  EXPECT_GT(Counted::passes, 0);
}

/// As a thread does that posts small requests one after another: each ends before the wait has run progress
/// of the other backends. No other thread runs progress: the progress thread steps aside for this one.
template <class Once>
void expect_others_are_driven(Progress& progress, const Once& once) {
  std::atomic<bool> rang = false;
  progress.at(now_ns() + 1'000'000, [&] { rang = true; });
  Counted::passes = 0;
  const Deadline most = Deadline::after(10s);
  while ((!rang || Counted::passes < 10) && !most.expired()) once();
  EXPECT_TRUE(rang);
  EXPECT_GE(Counted::passes, 10);
}

TEST(Progress, short_waits_one_after_another_run_progress_of_all_backends) {
  SilentEvents events;
  const test::TemporaryFolder folder;
  const auto instance = open(Counted::table(), events, folder).value();
  const auto progress = Progress::open(steady_clock).value();
  ASSERT_TRUE(progress->add(*instance).ok());
  expect_others_are_driven(*progress, [&] {
    int helps = 0;
    EXPECT_TRUE(progress->wait([&] { return helps == 3; }, [&] { return ++helps < 3; }, Deadline::never()));
  });
}

TEST(Progress, polls_of_one_backend_one_after_another_run_progress_of_the_others) {
  SilentEvents events;
  const test::TemporaryFolder folder;
  const auto other = open(Counted::table(), events, folder).value();
  const auto own = open(plugin::table<fake::FakeBackend>(), events, folder).value();
  const auto progress = Progress::open(steady_clock).value();
  ASSERT_TRUE(progress->add(*other).ok());
  ASSERT_TRUE(progress->add(*own).ok());
  expect_others_are_driven(*progress, [&] { (void)progress->poll(*own); });
}

TEST(Progress, a_waiter_whose_own_polls_never_end_runs_progress_and_keeps_its_deadline) {
  SilentEvents events;
  const test::TemporaryFolder folder;
  const auto instance = open(Counted::table(), events, folder).value();
  const auto progress = Progress::open(steady_clock).value();
  ASSERT_TRUE(progress->add(*instance).ok());
  Counted::passes = 0;
  EXPECT_FALSE(progress->wait([] { return false; }, [] { return true; }, Deadline::after(10ms)));
  EXPECT_GT(Counted::passes, 0);
}

TEST(Progress, a_waiter_runs_progress_after_the_progress_thread_has_stopped_doing_so) {
  SilentEvents events;
  const test::TemporaryFolder folder;
  const auto instance = open(Held::table(), events, folder).value();
  const auto progress = Progress::open(steady_clock, 1h).value();
  ASSERT_TRUE(progress->add(*instance).ok());
  ASSERT_TRUE(progress->start().ok());
  while (!Held::armed) std::this_thread::yield();
  std::thread waiter([&] {
    Held::waiter = ::gettid();
    EXPECT_TRUE(progress->wait([] { return Held::done.load(); }, Deadline::after(60s)));
  });
  waiter.join();
  progress->stop();
}

}  // namespace
}  // namespace headrace::engine
