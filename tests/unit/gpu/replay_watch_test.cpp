// SPDX-License-Identifier: Apache-2.0
#include "gpu/replay_watch.hpp"

#include "gpu_test.hpp"
#include "support/fake_graph.hpp"
#include "support/page_side.hpp"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace headrace::gpu {
namespace {

using test::GpuGraph;

constexpr std::uint64_t page_bytes = 512;
constexpr std::uint32_t pages = 10;

struct Heard final : ReplayWatch::Listener {
  [[nodiscard]] bool may_hear() const override { return listens; }
  void replays_ended(std::uint32_t count) override {
    EXPECT_GT(count, 0U);
    EXPECT_FALSE(inside.exchange(true)) << "two calls at once";
    replays += count;
    ++calls;
    inside = false;
  }
  std::atomic<bool> listens{true}, inside{false};
  std::atomic<std::uint64_t> replays{0}, calls{0};
};

class ReplayWatchTest : public GpuTest {
 protected:
  ReplayWatchTest()
      : gpus({[this] { return fake.load(); }, [] { return Result<KernelLibrary>(library()); }}, {}),
        gpu(gpus.open(0).value()),
        memory(DeviceMemory::allocate(gpu->device, 2 * pages * page_bytes).value()),
        move(prepare()),
        graph(gpu->stream, [this] { EXPECT_TRUE(move->record(gpu->stream.handle())); }) {}

  std::unique_ptr<GraphMove> prepare() {
    const test::PageSide here = test::uniform_side(&memory, 0, page_bytes, page_bytes),
                         there = test::uniform_side(&memory, pages * page_bytes, page_bytes, page_bytes);
    const headrace_side_v1 local = here.view(), remote = there.view();
    headrace_prepare_v1 args{};
    args.struct_size = sizeof args;
    args.op = HEADRACE_WRITE;
    args.count = pages;
    args.bytes = pages * page_bytes;
    args.local = &local;
    args.remote = &remote;
    const auto address_of = [](void* handle) { return static_cast<DeviceMemory*>(handle)->address(); };
    return GraphMove::prepare(gpu->mover, args, {pages, pages}, address_of, address_of).value();
  }
  std::shared_ptr<ReplayWatch> start() { return ReplayWatch::start(posts, *gpu, *move, heard); }

  Gpus gpus;
  const std::shared_ptr<const WorkingGpu> gpu;
  DeviceMemory memory;
  std::unique_ptr<GraphMove> move;
  const GpuGraph graph;
  std::atomic<std::uint64_t> rings{0};
  Posts posts{[this] { ++rings; }};
  Heard heard;
};

TEST_F(ReplayWatchTest, tells_each_replay_once_to_the_thread_that_looks) {
  const auto watch = start();
  EXPECT_EQ(posts.progress(), 0U);
  graph.replay();
  EXPECT_EQ(posts.progress(), 1U);
  EXPECT_EQ(heard.replays, 1U);
  EXPECT_EQ(posts.progress(), 0U);
  for (int i = 0; i < 5; ++i) graph.replay();
  EXPECT_EQ(posts.progress(), 1U);
  EXPECT_EQ(heard.replays, 6U);
  EXPECT_EQ(heard.calls, 2U);
  watch->stop();
  EXPECT_EQ(heard.calls, 2U);
  graph.replay();
  EXPECT_EQ(posts.progress(), 0U);
  EXPECT_EQ(heard.replays, 6U);
}

TEST_F(ReplayWatchTest, tells_what_is_left_when_it_is_stopped) {
  const auto watch = start();
  graph.replay();
  heard.listens = false;
  watch->stop();
  EXPECT_EQ(heard.replays, 1U);
}

TEST_F(ReplayWatchTest, waits_for_a_listener_that_may_not_hear) {
  const auto watch = start();
  heard.listens = false;
  for (int i = 0; i < 3; ++i) graph.replay();
  EXPECT_EQ(posts.progress(), 0U) << "the host has nothing to do and may sleep";
  heard.listens = true;
  EXPECT_EQ(posts.progress(), 1U);
  EXPECT_EQ(heard.replays, 3U);
  watch->stop();
}

TEST_F(ReplayWatchTest, rings_a_host_that_sleeps) {
  const auto watch = start();
  EXPECT_EQ(posts.arm(true), 0U);
  graph.replay();
  while (rings == 0) std::this_thread::yield();
  (void)posts.arm(false);
  EXPECT_EQ(posts.progress(), 1U);
  EXPECT_EQ(posts.arm(true), 0U);
  watch->stop();
  (void)posts.arm(false);
}

TEST_F(ReplayWatchTest, is_stopped_while_other_threads_look) {
  std::atomic<bool> over{false};
  std::vector<std::thread> lookers;
  for (int i = 0; i < 2; ++i)
    lookers.emplace_back([&] {
      while (!over) (void)posts.progress();
    });
  std::uint64_t expected = 0;
  for (int round = 0; round < 200; ++round) {
    move = prepare();
    const GpuGraph again(gpu->stream, [this] { EXPECT_TRUE(move->record(gpu->stream.handle())); });
    const auto watch = start();
    for (int replay = 0; replay < 3; ++replay) again.replay();
    watch->stop();
    EXPECT_EQ(heard.replays, expected += 3);
  }
  over = true;
  for (std::thread& looker : lookers) looker.join();
}

}  // namespace
}  // namespace headrace::gpu
