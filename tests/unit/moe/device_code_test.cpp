// SPDX-License-Identifier: Apache-2.0
// The device code of the kernel family moe itself, on the CPU: blocks are threads, and each of their threads
// a context. So its lanes, shared memory, grids that meet and ranks that wait are those of the GPU.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)  // it does not see contexts
#define HEADRACE_NO_CONTEXTS 1
#endif
#endif
#ifndef HEADRACE_NO_CONTEXTS

#include "support/moe_on_cpu.hpp"
//
#include "kernels/moe/moe.hpp"
#include "support/moe_steps.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <thread>

namespace headrace::moe_steps {
namespace {

namespace device = kernels::moe;

/// Each launch is a grid of its own; those of a rank run one after another.
class GridMachine : public Machine {
 public:
  ///   senders  blocks that send in a launch that does both halves; the others receive from the start
  GridMachine(unsigned blocks, unsigned senders) : blocks_(blocks), senders_(senders) {}

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
    if (auto choose = device::choose_of(args)) {
      const auto run = [](const auto& launch) { device::choose(launch); };
      start(rank, 1, *choose, run);
    }
    queue(rank, device::dispatch_of(args, blocks_), [](const auto& launch) { device::dispatch(launch); });
  }
  void combine(int rank, const headrace_moe_combine_v1& args) override {
    queue(rank, device::combine_of(args, blocks_), [](const auto& launch) {
      launch.float8 != 0 ? device::combine<true>(launch) : device::combine<false>(launch);
    });
  }
  void combine_memory(int rank, const headrace_moe_combine_memory_v1& args) override {
    const auto launch = device::window_rows_of(args);
    ASSERT_TRUE(launch);
    start(rank, 1, *launch, [](const auto& of) { device::find_window_rows(of); });
  }
  void wait(int rank) override { last_[rank] = std::jthread(); }

 private:
  template <class Launch, class Run>
  void queue(int rank, std::optional<Launch> launch, const Run& run) {
    ASSERT_TRUE(launch);
    launch->common.senders = launch->common.halves == both_halves ? senders_ : blocks_;
    start(rank, blocks_, *launch, run);
  }
  template <class Launch, class Run>
  void start(int rank, unsigned blocks, const Launch& launch, const Run& run) {
    last_[rank] = std::jthread([before = std::move(last_[rank]), launch, run, blocks]() mutable {
      if (before.joinable()) before.join();
      cpu_grid::run_grid(blocks, device::block_threads, [&] { run(launch); });
    });
  }

  const unsigned blocks_, senders_;
  std::map<int, std::jthread> last_;
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory_;
};

void run_case(std::uint64_t seed, int most_ranks, std::int64_t most_tokens) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const MoEConfig config = random_config(random, most_ranks, most_tokens);
  const auto blocks = 1 + static_cast<unsigned>(below(random, 3));
  GridMachine machine(blocks, 1 + static_cast<unsigned>(below(random, blocks)));
  Ranks ranks(machine, config, blocks, 60'000'000'000);
  for (int i = 0; i < 2; ++i) {
    const Step step(random, config, static_cast<Choice>(below(random, choices)));
    EXPECT_EQ(run_step(machine, ranks, step, below(random, 2) == 0), "");
  }
}

std::uint64_t first_seed() {
  const char* const given = std::getenv("HEADRACE_TEST_SEED");
  if (given != nullptr) return std::strtoull(given, nullptr, 10);
  return std::random_device()() % 1'000'000'000;
}

TEST(MoEDeviceCode, makes_of_random_tokens_what_all_ranks_make_in_one_function) {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + 4 && !testing::Test::HasFailure(); ++seed)
    run_case(seed, 2, 30);
}

/// Each number of rows has its own tiles of vectors: these rows have several, and part of one.
TEST(MoEDeviceCode, rows_of_many_tiles_are_moved_and_added_in_any_number) {
  for (const int top_k : {1, 2, 4, 7, 9}) {
    SCOPED_TRACE("top_k " + std::to_string(top_k));
    Random random(static_cast<std::uint64_t>(top_k));
    MoEConfig config;
    config.ranks = 1, config.experts = 10, config.top_k = top_k;
    config.dtype = config.combine_dtype = DType::bfloat16;
    config.hidden = 3600 + 8 * top_k, config.max_tokens = 6;
    GridMachine machine(1, 1);
    Ranks ranks(machine, config, 1, 60'000'000'000);
    const Step step(random, config, Choice::uniform);
    EXPECT_EQ(run_step(machine, ranks, step, false), "");
  }
}

TEST(MoEDeviceCode, a_routing_is_used_again_with_other_rows_and_weights) {
  MoEConfig config;
  config.ranks = 2, config.group_size = 2, config.experts = 6, config.top_k = 3;
  config.hidden = 16, config.max_tokens = 40;
  Random random(11);
  GridMachine machine(2, 2);
  Ranks ranks(machine, config, 2, 60'000'000'000);
  EXPECT_EQ(repeat_step(machine, ranks, random, Step(random, config, Choice::uniform)), "");
}

TEST(MoEDeviceCode, sums_of_a_group_do_not_wait_for_a_member_that_is_left_out) {
  for (const bool float8 : {false, true}) {
    MoEConfig config;
    config.ranks = 4, config.group_size = 2, config.experts = 8, config.top_k = 3;
    config.hidden = 144, config.max_tokens = 60, config.float8_combine = float8;
    Random random(13);
    GridMachine machine(2, 2);
    Ranks ranks(machine, config, 2, 60'000'000'000);
    Step step(random, config, Choice::uniform, 13);
    step.inputs[0] = step.inputs[1] = random_tokens(random, config, 60, Choice::uniform);
    step.make_plain(config, 13);
    EXPECT_EQ(run_masked_step(machine, ranks, step, 13), "");
  }
}

TEST(MoEDeviceCode, a_rank_that_does_not_come_is_named_and_left_out) {
  MoEConfig config;
  config.ranks = 3, config.experts = 9, config.top_k = 2;
  config.hidden = 16, config.max_tokens = 20;
  Random random(7);
  GridMachine machine(2, 2);
  Ranks ranks(machine, config, 2, 1'000'000'000);  // ns: those that come are never so late
  EXPECT_EQ(run_step(machine, ranks, Step(random, config, Choice::uniform), false), "");
  Step rest(random, config, Choice::uniform, 5);
  rest.make_plain(config, 5);  // a table of replicas is read before the loss is seen
  const Step next(random, config, Choice::uniform, 5);
  const auto run = [&](const Step& step) {
    for (const int rank : {0, 2}) {
      ranks.give(step, rank);
      ranks.dispatch(step, rank, both_halves);
      ranks.combine(step, rank, both_halves);
    }
    for (const int rank : {0, 2}) machine.wait(rank);
  };
  run(rest);
  for (const int rank : {0, 2}) {
    headrace_moe_status_v1& seen = ranks.status(rank);
    EXPECT_EQ(seen.reason, HEADRACE_MOE_TIMED_OUT);
    EXPECT_EQ(seen.peer, 1u);
    EXPECT_EQ(seen.awaited, HEADRACE_MOE_COUNTS);
    EXPECT_EQ(seen.number, 2u);
    seen.reason = 0;
    EXPECT_EQ(ranks.compare_rows(rest, rank), "");
    EXPECT_EQ(ranks.compare_sums(rest, rank), "");
  }
  run(next);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(ranks.compare_rows(next, rank), "");
    EXPECT_EQ(ranks.compare_sums(next, rank), "");
  }
  for (int i = 0; i < 2; ++i) {
    ranks.give(next, 1);
    ranks.dispatch(next, 1, both_halves);
    machine.wait(1);
  }
  EXPECT_EQ(ranks.status(1).reason, HEADRACE_MOE_LEFT_OUT);
}

TEST(MoEDeviceCode, a_rank_that_is_out_says_so_once_its_status_is_free) {
  MoEConfig config;
  config.ranks = 3, config.experts = 9, config.top_k = 2;
  config.hidden = 16, config.max_tokens = 20;
  Random random(7);
  GridMachine machine(1, 1);
  Ranks ranks(machine, config, 1, 200'000'000);
  EXPECT_EQ(run_late_step(machine, ranks, random), "");
}

/// 4096 experts, and lists for which shared memory has no room beside their counters.
TEST(MoEDeviceCode_slow, a_small_route_of_many_experts_has_its_lists_in_memory) {
  MoEConfig config;
  config.ranks = 3, config.experts = 4096, config.top_k = 4;
  config.hidden = 16, config.max_tokens = 512;
  Random random(5);
  GridMachine machine(2, 2);
  Ranks ranks(machine, config, 2, 60'000'000'000);
  Step step(random, config, Choice::uniform);
  step.inputs[0] = random_tokens(random, config, 512, Choice::uniform);
  step.make_plain(config);
  EXPECT_EQ(run_step(machine, ranks, step, false), "");
}

TEST(MoEDeviceCode_slow, makes_of_random_tokens_what_all_ranks_make_in_one_function) {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + 60 && !testing::Test::HasFailure(); ++seed)
    run_case(seed, 4, seed % 3 == 0 ? 700 : 60);
}

}  // namespace
}  // namespace headrace::moe_steps

#endif
