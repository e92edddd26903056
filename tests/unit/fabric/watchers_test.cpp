// SPDX-License-Identifier: Apache-2.0
// Watchers: words that kernels change, with CPU threads in their place, and the functions that are told.
#include "fabric/watchers.hpp"
#include "fabric/core.hpp"
#include "support/fake_cuda.hpp"
#include "unit/fabric/two_fabrics.hpp"

#include <headrace/device/fabric.cuh>

#include <algorithm>
#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <utility>

namespace headrace::test_fabric {
namespace {

using fabric::Callbacks;
using fabric::Watchers;

struct WatchedTable {
  std::shared_ptr<Callbacks> callbacks = std::make_shared<Callbacks>();
  std::shared_ptr<Watchers> all =
      value_of(Watchers::make(nullptr, callbacks, std::make_shared<const ForkGuard>()));
};

std::uint64_t* word_of(const FabricWatcher& watcher) {
  return reinterpret_cast<std::uint64_t*>(watcher.address());
}

TEST(FabricWatchers, each_word_is_apart_and_all_of_them_are_watched) {
  auto fabric = open_at({"127.0.0.1"});
  std::vector<FabricWatcher> watchers;
  std::atomic<std::uint64_t> sum = 0;
  std::promise<void> all_told;
  constexpr std::uint64_t total = Watchers::most * (Watchers::most + 1) / 2;
  for (std::size_t i = 0; i < Watchers::most; ++i)
    watchers.push_back(value_of(fabric.watch([&](std::uint64_t before, std::uint64_t now) {
      if ((sum += now - before) == total) all_told.set_value();
      return true;
    })));
  expect_refused(fabric.watch([](std::uint64_t, std::uint64_t) { return true; }), Code::exhausted,
                 "all 4096 words are watched");
  for (std::size_t i = 0; i < Watchers::most; ++i) watchers[i].store(i + 1);
  ASSERT_EQ(all_told.get_future().wait_for(long_enough), std::future_status::ready);
  watchers.front().stop();
  watchers.erase(watchers.begin());
  EXPECT_TRUE(fabric.watch([](std::uint64_t, std::uint64_t) { return false; })) << "its word is free again";
}

TEST(FabricWatchers, a_function_is_told_of_before_and_now_until_it_declines) {
  auto fabric = open_at({"127.0.0.1"});
  std::promise<void> declined;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> told;
  const auto watcher = value_of(fabric.watch([&](std::uint64_t before, std::uint64_t now) {
    told.emplace_back(before, now);
    if (now < 5) return true;
    declined.set_value();  // a second time would throw
    return false;
  }));
  EXPECT_EQ(watcher.value(), 0U);
  for (int i = 0; i < 9; ++i) device::bump<device::Scope::thread>(word_of(watcher));
  ASSERT_EQ(declined.get_future().wait_for(long_enough), std::future_status::ready);
  watcher.store(100);
  fabric.close();
  std::uint64_t before = 0;
  for (const auto& [from, to] : told) {
    EXPECT_EQ(from, before);
    EXPECT_GT(to, from);
    before = to;
  }
  EXPECT_GE(before, 5U);
  EXPECT_LE(before, 9U);
}

/// The thread sanitizer sees what orders the bytes and the word.
TEST(FabricWatchers, what_a_thread_has_written_before_a_bump_is_read_and_may_be_sent) {
  TwoFabrics two(4096);
  std::vector<std::uint8_t> rows(4096);
  const auto source =
      value_of(two.here.register_memory({.address = rows.data(), .length_bytes = rows.size()}));
  const auto arrivals = value_of(two.there.expect({1, 0}, 1));
  const auto watcher = value_of(two.here.watch([&](std::uint64_t, std::uint64_t) {
    FabricPost post;
    post.immediate = Immediate{1, 0};
    EXPECT_TRUE(two.here.write(source, 0, two.target(), 0, rows.size(), post));
    return true;
  }));
  for (int layer = 1; layer <= 40; ++layer) {
    std::thread kernel([&] {
      std::ranges::fill(rows, static_cast<std::uint8_t>(layer));
      device::bump<device::Scope::thread>(word_of(watcher));
    });
    ASSERT_TRUE(arrivals.wait(long_enough).ok());
    ASSERT_EQ(two.there_block->bytes, rows) << "layer " << layer;
    kernel.join();
  }
}

TEST(FabricWatchers, a_function_that_throws_is_told_and_called_again) {
  auto fabric = open_at({"127.0.0.1"});
  std::promise<std::string> error;
  fabric.on_error([&](const Error& failed) { error.set_value(failed.message); });
  std::promise<std::uint64_t> second;
  const auto watcher = value_of(fabric.watch([&](std::uint64_t before, std::uint64_t now) -> bool {
    if (before == 0) throw std::runtime_error("the first call");
    second.set_value(now);
    return false;
  }));
  watcher.store(3);
  EXPECT_NE(error.get_future().get().find("the first call"), std::string::npos);
  watcher.store(4);
  EXPECT_EQ(second.get_future().get(), 4U);
}

TEST(FabricWatchers, words_without_handles_are_watched_and_free_once_they_have_declined) {
  const WatchedTable table;
  std::atomic<std::uint64_t> calls = 0;
  const auto declines_at_2 = [&calls](std::uint64_t, std::uint64_t now) {
    ++calls;
    return now < 2;
  };
  auto first = value_of(table.all->add(declines_at_2));
  const auto word = first->word();
  first.reset();
  word.store(1);
  EXPECT_TRUE(table.all->poll());
  EXPECT_FALSE(table.all->poll()) << "nothing has changed since";
  while (calls == 0) std::this_thread::yield();  // else the next value is told in its place
  word.store(2);
  EXPECT_TRUE(table.all->poll());
  table.callbacks->close();
  EXPECT_EQ(calls, 2U);
  word.store(3);
  EXPECT_FALSE(table.all->poll()) << "it has declined";
  std::vector<std::shared_ptr<const fabric::HeldWatcher>> held;
  for (std::size_t i = 0; i < Watchers::most; ++i) held.push_back(value_of(table.all->add(declines_at_2)));
  EXPECT_EQ(table.all->add(declines_at_2).code(), Code::exhausted);
  for (const auto& each : held) EXPECT_EQ(each->word().load(), 0U) << "nothing is left of its last value";
}

TEST(FabricWatchers, words_for_a_gpu_lie_in_one_block_of_pinned_memory) {
  cuda::FakeCuda fake;
  const auto before = fake.live();
  fabric::CoreSetup setup;
  setup.driver = [&fake] { return fake.load(); };
  {
    auto plan =
        value_of(fabric::plan_groups({.groups = {{.nics = {"127.0.0.1"}}}}, fabric::this_machine(false)));
    std::vector<fabric::OpenGroup> groups;
    groups.push_back(value_of(fabric::open_nics(plan.front(), {})));
    auto fabric = value_of(fabric::Core::open(std::move(groups), setup));
    std::promise<std::uint64_t> told;
    const auto declines = [&told](std::uint64_t, std::uint64_t now) {
      told.set_value(now);
      return false;
    };
    const auto watcher = value_of(fabric.watch(declines, 0));
    const auto other = value_of(fabric.watch(declines, 0));
    EXPECT_EQ(fake.live().pinned, before.pinned + 1);
    const auto device = value_of(gpu::Device::open(*fake.load(), 0));
    const auto stream = value_of(gpu::Stream::make(device));
    const gpu::ContextGuard current(*device);
    EXPECT_EQ(
        fake.load()->stream_write_value_64(stream.handle(), watcher.address(), 42, cuda::write_value_default),
        cuda::Outcome::success);
    EXPECT_EQ(told.get_future().get(), 42U);
    expect_refused(fabric.watch(declines, 5), Code::invalid_argument, "5");
  }
  EXPECT_EQ(fake.live(), before);
}

TEST(FabricWatchers, a_closed_fabric_calls_no_function_and_takes_none) {
  auto fabric = open_at({"127.0.0.1"});
  std::atomic<int> calls = 0;
  const auto count = [&calls](std::uint64_t, std::uint64_t) { return ++calls > 0; };
  const auto watcher = value_of(fabric.watch(count));
  expect_refused(fabric.watch(nullptr), Code::invalid_argument, "needs a function");
  fabric.close();
  watcher.store(1);
  watcher.stop();
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(watcher.value(), 1U) << "its memory stays";
  expect_refused(fabric.watch(count), Code::invalid_argument, "closed");
}

TEST(FabricWatchers, a_worker_that_watches_sleeps_between_its_polls) {
  auto fabric = open_at({"127.0.0.1"});
  std::promise<void> told;
  const auto watcher = value_of(fabric.watch([&](std::uint64_t, std::uint64_t) {
    told.set_value();
    return false;
  }));
  const fabric::Worker& worker = fabric::Core::of(fabric)->worker(0);
  const std::uint64_t before = worker.sleeps();
  while (worker.sleeps() < before + 20) std::this_thread::yield();
  watcher.store(1);
  EXPECT_EQ(told.get_future().wait_for(long_enough), std::future_status::ready);
}

}  // namespace
}  // namespace headrace::test_fabric
