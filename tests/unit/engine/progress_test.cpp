// SPDX-License-Identifier: Apache-2.0
// Who drives while threads wait.
#include "engine/progress.hpp"

#include "backends/fake/backend.hpp"
#include "support/temporary_folder.hpp"
#include "unit/engine/silent_events.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

/// Whether that thread of this process sleeps in the system.
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const auto end_of_name = stat.rfind(')');
  return end_of_name != std::string::npos && stat.size() > end_of_name + 2 && stat[end_of_name + 2] == 'S';
}

/// A backend that keeps the progress thread on its way out of the driver's seat until the waiter sleeps, and
/// whose one end is seen by the waiter's own progress alone.
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
        while (!sleeps(waiter)) std::this_thread::yield();
        let_go = true;
      }
      return 0;
    };
    return &t;
  }
};

/// A backend that counts how often it is driven.
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

TEST(Progress, a_waiter_that_has_helped_to_the_end_drives_nobody_else_if_that_was_done_a_moment_ago) {
  SilentEvents events;
  const test::TemporaryFolder folder;
  const auto instance = open(Counted::table(), events, folder).value();
  const auto progress = Progress::open().value();
  ASSERT_TRUE(progress->add(*instance).ok());
  // A moment is short: the machine may take longer between two lines, but not each time.
  bool alone = false;
  for (int tries = 0; tries < 1000 && !alone; ++tries) {
    (void)progress->poll();
    Counted::passes = 0;
    int helps = 0;
    const auto help = [&] { return ++helps < 3; };  // the third sees the end
    EXPECT_TRUE(progress->wait([&] { return helps == 3; }, help, Deadline::after(60s)));
    alone = Counted::passes == 0;
  }
  EXPECT_TRUE(alone);
  // Who is not helped by that looks elsewhere.
  EXPECT_FALSE(progress->wait([] { return false; }, [] { return false; }, Deadline::after(1ms)));
  EXPECT_GT(Counted::passes, 0);
}

/// As a thread does that posts small requests one after another: each ends before a round has been to the
/// others. There is nobody else to drive them: the progress thread steps aside for it.
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

TEST(Progress, short_waits_one_after_another_drive_the_others_too) {
  SilentEvents events;
  const test::TemporaryFolder folder;
  const auto instance = open(Counted::table(), events, folder).value();
  const auto progress = Progress::open().value();
  ASSERT_TRUE(progress->add(*instance).ok());
  expect_others_are_driven(*progress, [&] {
    int helps = 0;
    EXPECT_TRUE(progress->wait([&] { return helps == 3; }, [&] { return ++helps < 3; }, Deadline::never()));
  });
}

TEST(Progress, polls_of_one_backend_one_after_another_drive_the_others_too) {
  SilentEvents events;
  const test::TemporaryFolder folder;
  const auto other = open(Counted::table(), events, folder).value();
  const auto own = open(plugin::table<fake::FakeBackend>(), events, folder).value();
  const auto progress = Progress::open().value();
  ASSERT_TRUE(progress->add(*other).ok());
  ASSERT_TRUE(progress->add(*own).ok());
  expect_others_are_driven(*progress, [&] { (void)progress->poll(*own); });
}

TEST(Progress, a_waiter_that_helps_again_and_again_drives_the_others_too_and_keeps_its_deadline) {
  SilentEvents events;
  const test::TemporaryFolder folder;
  const auto instance = open(Counted::table(), events, folder).value();
  const auto progress = Progress::open().value();
  ASSERT_TRUE(progress->add(*instance).ok());
  Counted::passes = 0;
  EXPECT_FALSE(progress->wait([] { return false; }, [] { return true; }, Deadline::after(10ms)));
  EXPECT_GT(Counted::passes, 0);
}

TEST(Progress, a_waiter_that_found_the_drivers_seat_taken_takes_it_when_it_is_free) {
  SilentEvents events;
  const test::TemporaryFolder folder;
  const auto instance = open(Held::table(), events, folder).value();
  const auto progress = Progress::open(1h).value();
  ASSERT_TRUE(progress->add(*instance).ok());
  progress->start();
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
