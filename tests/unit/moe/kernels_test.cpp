// SPDX-License-Identifier: Apache-2.0
// The kernel family moe: its CPU reference, each rank on a thread of its own, which the thread sanitizer
// sees; and the host's half, over the fake driver.
#include "kernels/moe/moe.hpp"

#include "kernels/moe/reference.hpp"
#include "support/moe_gpu_machine.hpp"
#include "unit/gpu/gpu_test.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <functional>
#include <thread>

namespace headrace::moe_steps {
namespace {

namespace device = kernels::moe;
constexpr std::int64_t patience_ns = 60'000'000'000;

/// Runs the references of launches, those of each rank on one thread.
class ThreadsMachine : public Machine {
 public:
  explicit ThreadsMachine(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  std::byte* memory(std::size_t bytes, bool) override {
    const std::size_t whole = (bytes + 127) / 128 * 128 + 128;
    auto* const made = static_cast<std::byte*>(std::aligned_alloc(128, whole));
    std::memset(made, 0, whole);
    memory_.emplace_back(made, &std::free);
    return made;
  }
  const headrace_moe_v1& table() override {
    return *reinterpret_cast<const headrace_moe_v1*>(device::family.table);
  }
  void dispatch(int rank, const headrace_moe_dispatch_v1& args) override {
    if (const auto choose = device::choose_of(args)) queue(rank, "headrace_moe_choose", choose);
    queue(rank, "headrace_moe_dispatch", device::dispatch_of(args, 4));
  }
  void combine(int rank, const headrace_moe_combine_v1& args) override {
    queue(rank, "headrace_moe_combine", device::combine_of(args, 4));
  }
  void combine_memory(int rank, const headrace_moe_combine_memory_v1& args) override {
    queue(rank, "headrace_moe_window_rows", device::window_rows_of(args));
  }
  /// All ranks begin with what has been queued.
  void wait(int rank) override {
    if (rank != 0) return;
    std::vector<std::jthread> threads;
    for (auto& works : ranks_)
      threads.emplace_back([&works] {
        for (; !works.empty(); works.pop_front()) works.front()();
      });
  }

 private:
  template <class Launch>
  void queue(int rank, std::string_view name, const std::optional<Launch>& launch) {
    ASSERT_TRUE(launch);
    const auto& kernel =
        *std::ranges::find(device::reference_family.kernels, name, &kernels::reference::Kernel::name);
    ASSERT_EQ(kernel.argument_bytes, sizeof(Launch));
    ranks_[static_cast<std::size_t>(rank)].push_back([&kernel, args = std::make_shared<Launch>(*launch)] {
      static const kernels::reference::Memory everything{
          [](std::uint64_t, std::uint64_t) { return true; },
          [](void* target, const void* source, std::size_t bytes) { std::memcpy(target, source, bytes); }};
      const auto running = kernel.launch(args.get(), everything);
      while (running() == kernels::reference::Progress::stays) std::this_thread::yield();
    });
  }

  std::vector<std::deque<std::function<void()>>> ranks_;
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory_;
};

std::uint64_t first_seed() {
  const char* const given = std::getenv("HEADRACE_TEST_SEED");
  if (given != nullptr) return std::strtoull(given, nullptr, 10);
  return std::random_device()() % 1'000'000'000;
}

TEST(MoEKernels, references_make_of_random_tokens_what_all_ranks_make_in_one_function) {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + 12 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const MoEConfig config = random_config(random, 5, 40);
    ThreadsMachine machine(config.ranks);
    Ranks ranks(machine, config, 4, patience_ns);
    for (int i = 0; i < 3; ++i) {
      const Step step(random, config, static_cast<Choice>(below(random, choices)));
      EXPECT_EQ(run_step(machine, ranks, step, below(random, 2) == 0), "");
    }
  }
}

/// Two or more ranks of a small shape on the fake driver.
class MoEKernelsTest : public gpu::GpuTest {
 protected:
  MoEKernelsTest() : GpuTest(std::vector<cuda::FakeGpu>{cuda::FakeGpu{.multiprocessors = 132}}) {}

  static MoEConfig small_config(int ranks) {
    MoEConfig config;
    config.ranks = ranks;
    config.experts = 3 * ranks, config.top_k = 2;
    config.hidden = 16, config.max_tokens = 20;
    return config;
  }
  GpuMachine machine_of(int ranks) {
    const auto device = open();
    return {device, gpu::Kernels::open(library(), device).value(), ranks, std::size_t{64} << 20,
            std::size_t{96} << 20};
  }
  void expect_status(const Ranks& ranks, int rank, std::uint64_t reason, std::uint32_t peer,
                     std::uint32_t what, std::uint64_t number) {
    const headrace_moe_status_v1& seen = const_cast<Ranks&>(ranks).status(rank);
    EXPECT_EQ(__atomic_load_n(&seen.reason, __ATOMIC_ACQUIRE), reason);
    EXPECT_EQ(seen.waiter, static_cast<std::uint32_t>(rank));
    EXPECT_EQ(seen.peer, peer);
    EXPECT_EQ(seen.awaited, what);
    EXPECT_EQ(seen.number, number);
  }
  Random random{4711};
};

TEST_F(MoEKernelsTest, ranks_of_a_gpu_get_rows_and_sums) {
  GpuMachine machine = machine_of(4);
  for (int i = 0; i < 4; ++i) {
    machine.clear();
    const MoEConfig config = random_config(random, 4, 12);
    Ranks ranks(machine, config, 4, patience_ns);
    for (const bool in_halves : {false, true})
      EXPECT_EQ(run_step(machine, ranks, Step(random, config, Choice::uniform), in_halves), "");
  }
}

TEST_F(MoEKernelsTest, a_graph_is_replayed_with_other_tokens_experts_and_counts) {
  const MoEConfig config = small_config(3);
  GpuMachine machine = machine_of(3);
  Ranks ranks(machine, config, 4, patience_ns);
  Step first(random, config, Choice::uniform);
  first.make_plain(config);
  std::vector<Replay> replays;
  for (int rank = 0; rank < 3; ++rank)
    replays.emplace_back(machine, rank, [&, rank] {
      ranks.dispatch(first, rank, both_halves);
      ranks.combine(first, rank, both_halves);
    });
  for (int i = 0; i < 6; ++i) {
    Step step(random, config, static_cast<Choice>(i % choices));
    step.make_plain(config);
    for (int rank = 0; rank < 3; ++rank) ranks.give(step, rank);
    for (int rank = 0; rank < 3; ++rank) replays[static_cast<std::size_t>(rank)].launch(rank);
    for (int rank = 0; rank < 3; ++rank) machine.wait(rank);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(ranks.compare_rows(step, rank), "");
      EXPECT_EQ(ranks.compare_sums(step, rank), "");
    }
  }
}

TEST_F(MoEKernelsTest, a_routing_is_used_again_with_other_rows_and_weights) {
  for (const int group_size : {1, 2}) {
    MoEConfig config = small_config(4);
    config.group_size = group_size;
    GpuMachine machine = machine_of(4);
    Ranks ranks(machine, config, 4, patience_ns);
    EXPECT_EQ(repeat_step(machine, ranks, random, Step(random, config, Choice::some_none)), "");
  }
}

TEST_F(MoEKernelsTest, sums_of_a_group_do_not_wait_for_a_member_that_is_left_out) {
  MoEConfig config = small_config(4);
  config.group_size = 2, config.max_tokens = 60;
  GpuMachine machine = machine_of(4);
  Ranks ranks(machine, config, 4, patience_ns);
  Step step(random, config, Choice::uniform, 13);
  step.inputs[0] = step.inputs[1] = random_tokens(random, config, 60, Choice::uniform);
  step.make_plain(config, 13);
  EXPECT_EQ(run_masked_step(machine, ranks, step, 13), "");
}

TEST_F(MoEKernelsTest, two_dispatches_are_under_way) {
  const MoEConfig config = small_config(2);
  GpuMachine machine = machine_of(2);
  Ranks ranks(machine, config, 4, patience_ns);
  const Step step(random, config, Choice::uniform);
  for (int rank = 0; rank < 2; ++rank) {
    ranks.give(step, rank);
    for (const int routing : {0, 1}) ranks.dispatch(step, rank, HEADRACE_MOE_SEND, routing);
    for (const int routing : {0, 1}) ranks.dispatch(step, rank, HEADRACE_MOE_RECEIVE, routing);
    for (const int routing : {0, 1}) ranks.combine(step, rank, HEADRACE_MOE_SEND, routing);
  }
  for (int rank = 0; rank < 2; ++rank) machine.wait(rank);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.compare_rows(step, rank), "");
    ranks.combine(step, rank, HEADRACE_MOE_RECEIVE, 0);
  }
  for (int rank = 0; rank < 2; ++rank) machine.wait(rank);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.compare_sums(step, rank), "");
}

TEST_F(MoEKernelsTest, a_rank_that_the_mask_leaves_out_is_skipped) {
  const MoEConfig config = small_config(3);
  GpuMachine machine = machine_of(3);
  Ranks ranks(machine, config, 4, patience_ns);
  for (const Mask mask : {Mask{7}, Mask{5}, Mask{7}}) {  // it changes between launches
    const Step step(random, config, Choice::uniform, mask);
    for (int rank = 0; rank < 3; ++rank) ranks.set_active(rank, mask);
    for (int rank = 0; rank < 3; ++rank) {
      if (!moe_reference::is_active(mask, rank)) continue;
      ranks.give(step, rank);
      ranks.dispatch(step, rank, both_halves);
      ranks.combine(step, rank, both_halves);
    }
    if (mask == 5) {  // what the others do counts for the one that is left out, too
      ranks.set_active(1, 2);
      ranks.give(step, 1);
      ranks.dispatch(step, 1, both_halves);
      ranks.combine(step, 1, both_halves);
    }
    for (int rank = 0; rank < 3; ++rank) machine.wait(rank);
    for (int rank = 0; rank < 3; ++rank)
      if (moe_reference::is_active(mask, rank)) {
        EXPECT_EQ(ranks.compare_rows(step, rank), "");
        EXPECT_EQ(ranks.compare_sums(step, rank), "");
      }
    if (mask != 7) return;  // a rank that comes back needs an agreement of all: not there yet
  }
}

TEST_F(MoEKernelsTest, a_rank_that_does_not_come_is_named_and_left_out) {
  const MoEConfig config = small_config(3);
  GpuMachine machine = machine_of(3);
  Ranks ranks(machine, config, 4, 1'000'000'000);  // ns: those that come are never so late
  const Step all(random, config, Choice::uniform);
  EXPECT_EQ(run_step(machine, ranks, all, false), "");
  const Step rest(random, config, Choice::uniform, 5);
  for (const int rank : {0, 2}) {
    ranks.give(rest, rank);
    ranks.dispatch(rest, rank, both_halves);
  }
  for (const int rank : {0, 2}) {
    machine.wait(rank);
    expect_status(ranks, rank, HEADRACE_MOE_TIMED_OUT, 1, HEADRACE_MOE_COUNTS, 2);
    EXPECT_EQ(ranks.status(rank).expected, 2u);
    EXPECT_EQ(ranks.status(rank).seen, 0u) << "half 0 was never used";
    ranks.status(rank).reason = 0;
  }
  for (const int rank : {0, 2}) ranks.combine(rest, rank, both_halves);
  for (const int rank : {0, 2}) {
    machine.wait(rank);
    EXPECT_EQ(ranks.status(rank).reason, 0u) << "what is known is not said again";
  }
  // The survivors go on.
  const Step next(random, config, Choice::uniform, 5);
  for (const int rank : {0, 2}) {
    ranks.give(next, rank);
    ranks.dispatch(next, rank, both_halves);
    ranks.combine(next, rank, both_halves);
  }
  for (const int rank : {0, 2}) machine.wait(rank);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(ranks.compare_rows(next, rank), "");
    EXPECT_EQ(ranks.compare_sums(next, rank), "");
  }
  // The one that was late learns it, and does nothing more.
  for (int i = 0; i < 2; ++i) {
    ranks.give(next, 1);
    ranks.dispatch(next, 1, both_halves);
    machine.wait(1);
  }
  EXPECT_EQ(ranks.status(1).reason, HEADRACE_MOE_LEFT_OUT);
}

TEST_F(MoEKernelsTest, a_rank_that_is_out_says_so_once_its_status_is_free) {
  GpuMachine machine = machine_of(3);
  Ranks ranks(machine, small_config(3), 4, 30'000'000);
  EXPECT_EQ(run_late_step(machine, ranks, random), "");
}

TEST_F(MoEKernelsTest, an_abort_ends_a_wait) {
  const MoEConfig config = small_config(2);
  GpuMachine machine = machine_of(2);
  Ranks ranks(machine, config, 4, -1);
  const Step step(random, config, Choice::uniform);
  ranks.give(step, 0);
  ranks.dispatch(step, 0, both_halves);
  ranks.abort(0);
  machine.wait(0);
  expect_status(ranks, 0, HEADRACE_MOE_ABORTED, 1, HEADRACE_MOE_COUNTS, 1);
}

TEST_F(MoEKernelsTest, an_expert_that_cannot_be_is_named_and_skipped) {
  const MoEConfig config = small_config(2);
  GpuMachine machine = machine_of(2);
  Ranks ranks(machine, config, 4, patience_ns);
  Step step(random, config, Choice::uniform);
  step.inputs[0] = random_tokens(random, config, 5, Choice::uniform);
  step.inputs[0].experts[3] = -1;
  step.make_plain(config);
  step.inputs[0].experts[3] = 6;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.give(step, rank);
    ranks.dispatch(step, rank, both_halves);
  }
  for (int rank = 0; rank < 2; ++rank) machine.wait(rank);
  EXPECT_EQ(ranks.status(0).reason, HEADRACE_MOE_WRONG_EXPERT);
  EXPECT_EQ(ranks.status(0).expected, 3u);
  EXPECT_EQ(ranks.status(0).seen, 6u);
  ranks.status(0).reason = 0;
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.compare_rows(step, rank), "");
}

TEST_F(MoEKernelsTest, what_cannot_be_is_refused) {
  GpuMachine machine = machine_of(2);
  Ranks ranks(machine, small_config(2), 4, patience_ns);
  const headrace_moe_rank_v1 good = ranks[0];
  const auto size_of = [&](auto change) {
    headrace_moe_rank_v1 rank = good;
    change(rank);
    return machine.table().window_bytes(&rank);
  };
  EXPECT_NE(size_of([](auto&) {}), 0u);
  EXPECT_EQ(size_of([](auto& rank) { rank.ranks = 65; }), 0u);
  EXPECT_EQ(size_of([](auto& rank) { rank.rank = 2; }), 0u);
  EXPECT_EQ(size_of([](auto& rank) { rank.top_k = 33; }), 0u);
  EXPECT_EQ(size_of([](auto& rank) { rank.row_bytes = 24; }), 0u);
  EXPECT_EQ(size_of([](auto& rank) { rank.combine_dtype = HEADRACE_INT8; }), 0u);
  EXPECT_EQ(size_of([](auto& rank) { rank.layout = 3; }), 0u);
  EXPECT_EQ(size_of([](auto& rank) { rank.first_expert[1] = 7; }), 0u);
  EXPECT_EQ(size_of([](auto& rank) { rank.row_alignment = 0; }), 0u);
  const Step step(random, small_config(2), Choice::uniform);
  const auto refuses = [&](auto change) {
    ranks[0] = good;
    change(ranks[0]);
    EXPECT_THROW(ranks.dispatch(step, 0, both_halves), std::runtime_error);
    EXPECT_THROW(ranks.combine(step, 0, both_halves), std::runtime_error);
  };
  refuses([](auto& rank) { rank.blocks = 67; });  // of 132 multiprocessors, with two ranks
  refuses([](auto& rank) { rank.sharing = 0; });
  refuses([](auto& rank) { rank.windows[1] = 0; });
  refuses([](auto& rank) { rank.state = 0; });
  refuses([](auto& rank) { rank.status = 0; });
  ranks[0] = good;
  EXPECT_THROW(ranks.dispatch(step, 0, 0), std::runtime_error);
  EXPECT_THROW(ranks.dispatch(step, 0, 4), std::runtime_error);
}

}  // namespace
}  // namespace headrace::moe_steps
