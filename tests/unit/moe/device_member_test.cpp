// SPDX-License-Identifier: Apache-2.0
// The public face with windows in memory of GPUs: fake ones, with the CPU references of the kernels.
#include <headrace/moe.hpp>

#include "moe/open_moe.hpp"
#include "ranks.hpp"
#include "support/plugin_gpu_source.hpp"
#include "vendor/cuda/driver.hpp"

#include "gpu/device.hpp"
#include "gpu/stream.hpp"

#include <headrace/agent.hpp>

#include <gmock/gmock.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using moe::Bytes;
using moe_reference::of_rank;
using testing::HasSubstr;

gpu::LoadedKernels& fake_gpus_of_moe() {
  static auto& gpus = *new gpu::LoadedKernels(test::plugin_gpu_source());
  return gpus;
}

AgentOptions agents_on_gpus() {
  AgentOptions options{.backends = {"shm", test::gpu_backend}};
  options.options["plugin_path"] = test::gpu_plugin_folder;
  return options;
}

MoEConfig three_on_gpus() {
  MoEConfig config;
  config.ranks = 3, config.experts = 7, config.top_k = 2, config.hidden = 64, config.max_tokens = 50;
  config.scale_bytes = 8;
  config.wait_limit = 30s;
  return config;
}

/// Memory of a MoE, which lives as long as the test.
class Memory {
 public:
  explicit Memory(MoE& of) : of_(of) {}
  std::byte* take(std::size_t bytes) {
    tensors_.push_back(
        of_.new_tensor(DType::uint8, Shape{static_cast<std::int64_t>(std::max<std::size_t>(bytes, 16))})
            .value());
    return static_cast<std::byte*>(tensors_.back().data());
  }
  template <class T>
  T* copy(const std::vector<T>& values) {
    std::byte* const made = take(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(made, values.data(), values.size() * sizeof(T));
    return reinterpret_cast<T*>(made);
  }

 private:
  MoE& of_;
  std::deque<Tensor> tensors_;
};

/// What a dispatch gives to a rank, in memory of its GPU.
struct OutputOnGpu {
  OutputOnGpu(Memory& memory, MoE& moe) : config(moe.config()) {
    const auto rows = static_cast<std::size_t>(config.output_rows());
    const auto experts = static_cast<std::size_t>(config.local_experts());
    const auto ranks = static_cast<std::size_t>(config.ranks);
    out.rows = memory.take(rows * static_cast<std::size_t>(config.row_bytes()));
    out.scales = memory.take(rows * static_cast<std::size_t>(config.scale_bytes));
    out.counts = reinterpret_cast<std::int32_t*>(memory.take(4 * experts));
    out.first_rows = reinterpret_cast<std::int64_t*>(memory.take(8 * (experts + ranks + 1)));
    if (config.layout == MoELayout::by_rank) {
      out.experts =
          reinterpret_cast<std::int32_t*>(memory.take(4 * rows * static_cast<std::size_t>(config.top_k)));
      out.weights = reinterpret_cast<float*>(memory.take(4 * rows * static_cast<std::size_t>(config.top_k)));
    }
    host_counts = moe.new_host_tensor(DType::int32, Shape{config.local_experts()}).value();
    out.host_counts = static_cast<std::int32_t*>(host_counts.data());
    clear();
  }
  void clear() const {
    const auto rows = static_cast<std::size_t>(config.output_rows());
    const int untouched = std::to_integer<int>(moe::Dispatched::untouched);
    std::memset(out.rows, untouched, rows * static_cast<std::size_t>(config.row_bytes()));
    std::memset(out.scales, untouched, rows * static_cast<std::size_t>(config.scale_bytes));
    if (out.experts != nullptr) {
      std::memset(out.experts, 0xff, 4 * rows * static_cast<std::size_t>(config.top_k));
      std::memset(out.weights, 0, 4 * rows * static_cast<std::size_t>(config.top_k));
    }
  }
  void expect(const moe::Dispatched& expected) const {
    EXPECT_EQ(std::memcmp(out.rows, expected.rows.data(), expected.rows.size()), 0);
    if (!expected.scales.empty())
      EXPECT_EQ(std::memcmp(out.scales, expected.scales.data(), expected.scales.size()), 0);
    EXPECT_EQ(std::vector(out.counts, out.counts + expected.counts.size()), expected.counts);
    EXPECT_EQ(std::vector(out.host_counts, out.host_counts + expected.counts.size()), expected.counts);
    EXPECT_EQ(std::vector(out.first_rows, out.first_rows + expected.first_rows.size()), expected.first_rows);
    if (out.experts == nullptr) return;
    EXPECT_EQ(std::vector(out.experts, out.experts + expected.experts.size()), expected.experts);
    EXPECT_EQ(std::vector(out.weights, out.weights + expected.weights.size()), expected.weights);
  }
  const MoEConfig config;
  Tensor host_counts;
  MoERows out;
};

/// An agent and a MoE for each rank, joined, each with a stream of its GPU.
class GpuRanks {
 public:
  GpuRanks() = default;
  /// `gpus`: ranks share them if there are more ranks.
  GpuRanks(const MoEConfig& config, int gpus) {
    for (int rank = 0; rank < config.ranks; ++rank) {
      MoEConfig its = of_rank(config, rank);
      its.device = rank % gpus;
      add(its);
    }
  }
  void add(const MoEConfig& config) {
    names_.push_back(fmt::format("on_gpu{}", names_.size()));
    agents_.push_back(std::make_unique<Agent>(Agent::open(names_.back(), agents_on_gpus()).value()));
    auto opened = moe::open_moe(*agents_.back(), config, fake_gpus_of_moe());
    ASSERT_TRUE(opened) << opened.error().message;
    moes_.push_back(*std::move(opened));
    memories_.emplace_back(moes_.back());
    const int ordinal = std::max(config.device, 0);
    devices_.push_back(gpu::Device::open(*test::plugin_gpu().driver, ordinal).value());
    streams_.push_back(gpu::Stream::make(devices_.back()).value());
  }
  void exchange_bytes() {
    for (const auto& from : agents_)
      for (const auto& to : agents_)
        if (from != to) ASSERT_TRUE(to->import_metadata(*from->export_metadata()));
  }
  std::vector<Result<void>> join(std::chrono::nanoseconds timeout = 30s) {
    exchange_bytes();
    std::vector<Result<void>> joined(moes_.size());
    {
      std::vector<std::jthread> threads;
      for (std::size_t rank = 0; rank < moes_.size(); ++rank)
        threads.emplace_back([&, rank] { joined[rank] = moes_[rank].join(names_, timeout); });
    }
    return joined;
  }
  void must_join() {
    for (const auto& joined : join()) ASSERT_TRUE(joined) << joined.error().message;
  }
  [[nodiscard]] MoE& operator[](std::size_t rank) { return moes_[rank]; }
  [[nodiscard]] std::size_t size() const { return moes_.size(); }
  [[nodiscard]] Memory& memory(std::size_t rank) { return memories_[rank]; }
  [[nodiscard]] cuda::Stream stream(std::size_t rank) const { return streams_[rank].handle(); }
  [[nodiscard]] const gpu::Device& device(std::size_t rank) const { return *devices_[rank]; }
  void wait(std::size_t rank) const { ASSERT_TRUE(streams_[rank].wait_idle()); }
  void wait_all() const {
    for (std::size_t rank = 0; rank < streams_.size(); ++rank) wait(rank);
  }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::deque<MoE> moes_;
  std::vector<std::shared_ptr<const gpu::Device>> devices_;
  std::deque<gpu::Stream> streams_;
  std::deque<Memory> memories_;
};

MoETokens tokens_on_gpu(Memory& memory, const moe::Tokens& tokens) {
  MoETokens made;
  made.count = tokens.count;
  made.rows = memory.copy(tokens.rows);
  made.scales = tokens.scales.empty() ? nullptr : memory.copy(tokens.scales);
  made.experts = memory.copy(tokens.experts);
  made.weights = memory.copy(tokens.weights);
  return made;
}

void must(const Result<void>& done) { ASSERT_TRUE(done) << done.error().message; }

/// Memory for the steps of all ranks. Nothing is taken while launches wait.
struct StepsOnGpus {
  StepsOnGpus(GpuRanks& of, const MoEConfig& config) : ranks(of) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      outputs.emplace_back(ranks.memory(rank), ranks[rank]);
      routings.push_back(ranks[rank].new_routing().value());
      sums.push_back(
          ranks.memory(rank).take(static_cast<std::size_t>(config.max_tokens * config.combine_row_bytes())));
    }
  }
  /// A dispatch and a combine of all ranks, compared with the reference.
  void step(const MoEConfig& config, const moe::Step& expected, bool in_halves) {
    std::vector<MoETokens> tokens;
    std::vector<MoEResults> results;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      tokens.push_back(tokens_on_gpu(ranks.memory(rank), expected.inputs[rank]));
      results.push_back({.rows = ranks.memory(rank).copy(expected.results[rank])});
      outputs[rank].clear();
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      MoE& moe = ranks[rank];
      void* const stream = ranks.stream(rank);
      const MoERows& out = outputs[rank].out;
      const MoESums to{.rows = sums[rank]};
      if (in_halves) {
        must(moe.dispatch_send(tokens[rank], routings[rank], stream));
        must(moe.dispatch_receive(out, routings[rank], stream));
        must(moe.combine_send(results[rank], routings[rank], stream));
        must(moe.combine_receive(to, routings[rank], stream));
      } else {
        must(moe.dispatch(tokens[rank], out, routings[rank], stream));
        must(moe.combine(results[rank], to, routings[rank], stream));
      }
    }
    ranks.wait_all();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      SCOPED_TRACE(fmt::format("rank {} of {}", rank, config.ranks));
      must(ranks[rank].check());
      outputs[rank].expect(expected.rows[rank]);
      EXPECT_EQ(std::memcmp(sums[rank], expected.sums[rank].data(), expected.sums[rank].size()), 0);
      EXPECT_EQ(routings[rank].tokens(), expected.inputs[rank].count);
    }
  }
  GpuRanks& ranks;
  std::deque<OutputOnGpu> outputs;
  std::vector<MoERouting> routings;
  std::vector<std::byte*> sums;
};

constexpr moe::Mask all_ranks = ~moe::Mask{0};

TEST(MoEOnGpus, that_are_shared_or_not_make_what_the_reference_makes) {
  for (const int gpus : {1, 3})
    for (const MoELayout layout : {MoELayout::by_expert, MoELayout::batched, MoELayout::by_rank}) {
      SCOPED_TRACE(fmt::format("{} on {} GPUs", moe_layout_name(layout), gpus));
      MoEConfig config = three_on_gpus();
      config.layout = layout;
      GpuRanks ranks(config, gpus);
      ranks.must_join();
      StepsOnGpus steps(ranks, config);
      for (std::uint64_t seed = 1; seed <= 4; ++seed)
        steps.step(config, moe::Step(config, all_ranks, seed), seed % 2 == 0);
    }
}

/// As the experts of a rank, which write into the windows of the sources.
TEST(MoEOnGpus, take_results_that_are_in_the_windows_already) {
  MoEConfig config = three_on_gpus();
  config.layout = MoELayout::by_rank;
  GpuRanks ranks(config, 1);
  ranks.must_join();
  StepsOnGpus steps(ranks, config);
  std::vector<MoEWindowRows*> places;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    places.push_back(
        reinterpret_cast<MoEWindowRows*>(ranks.memory(rank).take(ranks.size() * sizeof(MoEWindowRows))));
  const auto row_bytes = static_cast<std::size_t>(config.combine_row_bytes());
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const moe::Step step(config, all_ranks, seed);
    std::vector<MoETokens> tokens;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      tokens.push_back(tokens_on_gpu(ranks.memory(rank), step.inputs[rank]));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      MoERouting& routing = steps.routings[rank];
      must(ranks[rank].dispatch(tokens[rank], steps.outputs[rank].out, routing, ranks.stream(rank)));
      must(ranks[rank].combine_memory(routing, {places[rank], ranks.size()}, ranks.stream(rank)));
    }
    ranks.wait_all();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::int64_t* const first = steps.outputs[rank].out.first_rows;
      for (std::size_t source = 0; source < ranks.size(); ++source) {
        const MoEWindowRows& place = places[rank][source];
        ASSERT_EQ(place.count, first[source + 1] - first[source]);
        if (place.count != 0)
          std::memcpy(place.rows,
                      step.results[rank].data() + static_cast<std::size_t>(first[source]) * row_bytes,
                      static_cast<std::size_t>(place.count) * row_bytes);
      }
      must(ranks[rank].combine({.in_window = true}, {.rows = steps.sums[rank]}, steps.routings[rank],
                               ranks.stream(rank)));
    }
    ranks.wait_all();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      must(ranks[rank].check());
      EXPECT_EQ(std::memcmp(steps.sums[rank], step.sums[rank].data(), step.sums[rank].size()), 0);
    }
  }
}

TEST(MoEOnGpus, replay_a_graph_whose_routing_changes) {
  const MoEConfig config = [] {
    MoEConfig made = three_on_gpus();
    made.ranks = 2;
    return made;
  }();
  GpuRanks ranks(config, 1);
  ranks.must_join();
  StepsOnGpus steps(ranks, config);
  const cuda::DriverTable& driver = *test::plugin_gpu().driver;
  std::vector<MoETokens> tokens;
  std::vector<std::byte*> results;
  std::vector<cuda::GraphExec> replays(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const moe::Step any(config, all_ranks, 1);
    tokens.push_back(tokens_on_gpu(ranks.memory(rank), any.inputs[rank]));
    results.push_back(ranks.memory(rank).copy(any.results[rank]));
    const cuda::Stream stream = ranks.stream(rank);
    ASSERT_EQ(driver.stream_begin_capture(stream, cuda::CaptureMode::relaxed), cuda::Outcome::success);
    must(ranks[rank].dispatch(tokens[rank], steps.outputs[rank].out, steps.routings[rank], stream));
    must(ranks[rank].combine({.rows = results[rank]}, {.rows = steps.sums[rank]}, steps.routings[rank],
                             stream));
    cuda::Graph graph = nullptr;
    ASSERT_EQ(driver.stream_end_capture(stream, &graph), cuda::Outcome::success);
    ASSERT_EQ(driver.graph_instantiate(&replays[rank], graph, 0), cuda::Outcome::success);
    static_cast<void>(driver.graph_destroy(graph));
  }
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const moe::Step step(config, all_ranks, seed);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto write = [](const void* to, const auto& values) {
        std::memcpy(const_cast<void*>(to), values.data(), values.size() * sizeof(values[0]));
      };
      write(tokens[rank].rows, step.inputs[rank].rows), write(tokens[rank].scales, step.inputs[rank].scales);
      write(tokens[rank].experts, step.inputs[rank].experts);
      write(tokens[rank].weights, step.inputs[rank].weights);
      write(results[rank], step.results[rank]);
      steps.outputs[rank].clear();
      ASSERT_EQ(driver.graph_launch(replays[rank], ranks.stream(rank)), cuda::Outcome::success);
    }
    ranks.wait_all();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      must(ranks[rank].check());
      steps.outputs[rank].expect(step.rows[rank]);
      EXPECT_EQ(std::memcmp(steps.sums[rank], step.sums[rank].data(), step.sums[rank].size()), 0);
    }
  }
  for (const cuda::GraphExec one : replays) static_cast<void>(driver.graph_exec_destroy(one));
}

/// Rank 2 does not come. Rank 0 misses it; rank 1 is told by the votes; rank 2 does nothing any more.
TEST(MoEOnGpus, leave_out_a_rank_and_agree_on_one_mask) {
  MoEConfig config = three_on_gpus();
  config.wait_limit = 1s;  // ranks 0 and 1 are never late, also on a busy machine
  GpuRanks ranks(config, 1);
  ranks.must_join();
  StepsOnGpus steps(ranks, config);
  const moe::Step step(config, all_ranks, 1);
  const auto dispatch = [&](std::size_t rank) {
    return ranks[rank].dispatch(tokens_on_gpu(ranks.memory(rank), step.inputs[rank]), steps.outputs[rank].out,
                                steps.routings[rank], ranks.stream(rank));
  };
  for (const std::size_t rank : {0U, 1U}) must(dispatch(rank));
  ranks.wait(0), ranks.wait(1);
  for (const std::size_t rank : {0U, 1U}) {
    const auto checked = ranks[rank].check();
    EXPECT_EQ(checked.code(), Code::timed_out);
    EXPECT_EQ(checked.error().message,
              fmt::format("rank {0}, check of \"moe\": rank {0} waited for counts of rank 2 in dispatch 1: "
                          "expected 1, seen 0",
                          rank));
    EXPECT_EQ(ranks[rank].failure()->peer, 2);
    EXPECT_EQ(ranks[rank].active(), 0b011U);
    must(ranks[rank].check());
  }
  // They go on without it: what it has is missing.
  const moe::Step without(config, 0b011, 2);
  for (const std::size_t rank : {0U, 1U}) {
    steps.outputs[rank].clear();
    must(ranks[rank].dispatch(tokens_on_gpu(ranks.memory(rank), without.inputs[rank]),
                              steps.outputs[rank].out, steps.routings[rank], ranks.stream(rank)));
    must(ranks[rank].combine({.rows = ranks.memory(rank).copy(without.results[rank])},
                             {.rows = steps.sums[rank]}, steps.routings[rank], ranks.stream(rank)));
  }
  ranks.wait(0), ranks.wait(1);
  for (const std::size_t rank : {0U, 1U}) {
    must(ranks[rank].check());
    steps.outputs[rank].expect(without.rows[rank]);
    EXPECT_EQ(std::memcmp(steps.sums[rank], without.sums[rank].data(), without.sums[rank].size()), 0);
  }
  const auto late = dispatch(2);
  EXPECT_EQ(late.code(), Code::canceled);
  EXPECT_THAT(late.error().message, HasSubstr("has left rank 2 out, as rank 2 sees in dispatch 1"));
  EXPECT_THAT(dispatch(2).error().message, HasSubstr("open a new MoE on all ranks"));
}

TEST(MoEOnGpus, a_rank_that_is_out_learns_it_before_what_else_its_launch_reports) {
  MoEConfig config = three_on_gpus();
  config.wait_limit = 1s;  // ranks 0 and 1 are never late, also on a busy machine
  GpuRanks ranks(config, 1);
  ranks.must_join();
  StepsOnGpus steps(ranks, config);
  moe::Step step(config, all_ranks, 1);
  step.inputs[2].experts.at(0) = config.experts;
  const auto dispatch = [&](std::size_t rank) {
    return ranks[rank].dispatch(tokens_on_gpu(ranks.memory(rank), step.inputs[rank]), steps.outputs[rank].out,
                                steps.routings[rank], ranks.stream(rank));
  };
  for (const std::size_t rank : {0U, 1U}) must(dispatch(rank));
  ranks.wait(0), ranks.wait(1);
  // They have left rank 2 out, and have not voted. Its launch may report before the call returns.
  auto told = dispatch(2);
  ranks.wait(2);
  if (told) told = ranks[2].check();
  EXPECT_EQ(told.code(), Code::canceled);
  EXPECT_THAT(told.error().message, HasSubstr("has left rank 2 out, as rank 2 sees in dispatch"));
}

TEST(MoEOnGpus, a_mask_of_one_rank_holds_for_all) {
  const MoEConfig config = three_on_gpus();
  GpuRanks ranks(config, 3);
  ranks.must_join();
  StepsOnGpus steps(ranks, config);
  must(ranks[0].set_active(0b011, ranks.stream(0)));
  EXPECT_EQ(ranks[1].active(), 0b011U);
  EXPECT_EQ(ranks[1].set_active(0b111).code(), Code::not_supported);
  const auto told = ranks[1].check();
  EXPECT_EQ(told.code(), Code::peer_lost);
  EXPECT_EQ(told.error().message,
            "rank 1, check of \"moe\": rank 2 was left out by another rank, as rank 1 sees in dispatch 0");
  const moe::Step step(config, 0b011, 3);
  for (const std::size_t rank : {0U, 1U})
    must(ranks[rank].dispatch(tokens_on_gpu(ranks.memory(rank), step.inputs[rank]), steps.outputs[rank].out,
                              steps.routings[rank], ranks.stream(rank)));
  ranks.wait(0), ranks.wait(1);
  for (const std::size_t rank : {0U, 1U}) {
    must(ranks[rank].check());
    steps.outputs[rank].expect(step.rows[rank]);
  }
  EXPECT_EQ(ranks[2].check().code(), Code::canceled);
}

TEST(MoEOnGpus, an_abort_ends_a_launch_and_this_ranks_part) {
  const MoEConfig config = three_on_gpus();
  GpuRanks ranks(config, 3);
  ranks.must_join();
  StepsOnGpus steps(ranks, config);
  const moe::Step step(config, all_ranks, 1);
  must(ranks[0].dispatch(tokens_on_gpu(ranks.memory(0), step.inputs[0]), steps.outputs[0].out,
                         steps.routings[0], ranks.stream(0)));
  std::jthread([&] { ranks[0].abort(); }).join();
  ranks.wait(0);
  EXPECT_EQ(ranks[0].check().error().message,
            "rank 0, check of \"moe\": rank 0 was aborted by its caller: open a new MoE on all ranks");
  EXPECT_EQ(ranks[1].active(), 0b110U);
  EXPECT_EQ(ranks[1].check().code(), Code::peer_lost);
}

TEST(MoEOnGpus, refuse_operations_in_an_order_that_cannot_be) {
  MoEConfig config = three_on_gpus();
  config.ranks = 1;
  GpuRanks ranks(config, 1);
  EXPECT_EQ(ranks[0].new_routing().error().message,
            "rank 0, new_routing of \"moe\": it has not joined the other ranks: call join first");
  ranks.must_join();
  StepsOnGpus steps(ranks, config);
  const moe::Step step(config, all_ranks, 1);
  const MoETokens tokens = tokens_on_gpu(ranks.memory(0), step.inputs[0]);
  std::deque<MoERouting> routings;
  for (int i = 0; i < 3; ++i) routings.push_back(ranks[0].new_routing().value());
  const auto send = [&](std::size_t i) {
    return ranks[0].dispatch_send(tokens, routings[i], ranks.stream(0));
  };
  const auto receive = [&](std::size_t i) {
    return ranks[0].dispatch_receive(steps.outputs[0].out, routings[i], ranks.stream(0));
  };
  EXPECT_THAT(receive(0).error().message, HasSubstr("no dispatch is under way: send one first"));
  EXPECT_THAT(ranks[0].combine({}, {}, routings[0]).error().message, HasSubstr("dispatch with it first"));
  must(send(0)), must(send(1));
  EXPECT_THAT(send(2).error().message, HasSubstr("dispatch 3 cannot begin: 2 are under way"));
  EXPECT_THAT(receive(1).error().message, HasSubstr("the routing is not that of dispatch 1"));
  EXPECT_THAT(ranks[0].dispatch(tokens, steps.outputs[0].out, routings[2]).error().message,
              HasSubstr("dispatch 1 is under way: receive it before a whole dispatch"));
  must(receive(0)), must(receive(1));
  MoERows out = steps.outputs[0].out;
  out.counts = nullptr;
  EXPECT_THAT(ranks[0].dispatch(tokens, out, routings[2], ranks.stream(0)).error().message,
              HasSubstr("host_counts are given without counts"));
  std::vector<MoEWindowRows> of_ranks(1);
  EXPECT_EQ(ranks[0].combine_memory(routings[0], of_ranks).code(), Code::not_supported);
  const auto met = ranks[0].regroup(ranks.names(), 1, 1s);
  EXPECT_EQ(met.code(), Code::not_supported);
  EXPECT_EQ(
      met.error().message,
      "rank 0, regroup of \"moe\": windows in memory of GPUs keep their ranks: open a new MoE on all ranks "
      "that go on");
  EXPECT_THAT(ranks[0].new_tensor(DType::uint8, Shape{-1}).error().message, HasSubstr("negative"));
  ranks.wait(0);
}

/// Ranks 0 and 1, which differ.
std::vector<Result<void>> join_two(const std::function<void(MoEConfig&, MoEConfig&)>& change) {
  MoEConfig config = three_on_gpus();
  config.ranks = 2;
  MoEConfig first = of_rank(config, 0), second = of_rank(config, 1);
  first.device = second.device = 0;
  change(first, second);
  GpuRanks ranks;
  ranks.add(first), ranks.add(second);
  return ranks.join(5s);
}

TEST(MoEOnGpus, a_rank_in_host_memory_beside_one_on_a_gpu_is_refused) {
  const auto joined = join_two([](MoEConfig& first, MoEConfig&) { first.device = -1; });
  EXPECT_EQ(
      joined[0].error().message,
      "rank 0, join of \"moe\": rank 1 (agent \"on_gpu1\"): rank 0 has memory of the host, rank 1 has of a "
      "GPU: give all ranks the same configuration");
  EXPECT_EQ(joined[1].code(), Code::invalid_argument);
}

TEST(MoEOnGpus, a_rank_that_wants_too_many_blocks_tells_the_others_why) {
  const auto joined = join_two([](MoEConfig&, MoEConfig& second) { second.blocks = 100; });
  EXPECT_THAT(joined[1].error().message,
              HasSubstr("100 blocks are wanted: 2 ranks on one GPU can have at most"));
  EXPECT_EQ(joined[0].code(), Code::invalid_argument);
  EXPECT_THAT(joined[0].error().message, HasSubstr("rank 1 could not join: \"100 blocks are wanted"));
}

TEST(MoEOnGpus, a_rank_that_does_not_join_is_named) {
  MoEConfig config = three_on_gpus();
  config.ranks = 2;
  GpuRanks ranks(config, 1);
  ranks.exchange_bytes();
  const auto joined = ranks[0].join(ranks.names(), 1s);  // most of it for the others' answers
  EXPECT_EQ(joined.code(), Code::timed_out);
  EXPECT_THAT(joined.error().message, HasSubstr("rank 1 has not joined: on GPUs all ranks call join"));
}

/// The second join maps the head of rank 0 anew, and does not find its window on the GPU.
TEST(MoEOnGpus, a_rank_that_could_not_join_reads_no_window_that_is_gone) {
  MoEConfig config = three_on_gpus();
  config.ranks = 2, config.device = 0;
  const std::vector<std::string> names{"gone_0", "stays_1"};
  const auto opened = [&](Agent& agent, int rank) {
    return moe::open_moe(agent, of_rank(config, rank), fake_gpus_of_moe()).value();
  };
  const auto exchange_bytes = [](Agent& from, Agent& to) {
    ASSERT_TRUE(to.import_metadata(*from.export_metadata()));
    ASSERT_TRUE(from.import_metadata(*to.export_metadata()));
  };
  Agent stays = Agent::open(names[1], agents_on_gpus()).value();
  MoE moe = opened(stays, 1);
  {
    Agent gone = Agent::open(names[0], agents_on_gpus()).value();
    const MoE other = opened(gone, 0);
    exchange_bytes(gone, stays);
    EXPECT_THAT(moe.join(names, 1s).error().message, HasSubstr("rank 0 has not joined"));
  }
  Agent anew = Agent::open(names[0], agents_on_gpus()).value();
  const MoE other = opened(anew, 0);
  for (const Region& region : anew.regions())
    if (region.name == "moe/gpu") ASSERT_TRUE(anew.deregister(region.id, 1s));
  exchange_bytes(anew, stays);
  EXPECT_THAT(moe.join(names, 1s).error().message, HasSubstr("its window \"moe/gpu\" is not known"));
  EXPECT_EQ(moe.active(), 0b11U);
}

TEST(MoEOnGpus, an_abort_ends_a_join_that_waits_for_an_agent) {
  AgentOptions options = agents_on_gpus();
  options.store = "memory:moe_on_gpus_aborted";
  Agent agent = Agent::open("on_gpu0", options).value();
  MoEConfig config = of_rank(three_on_gpus(), 0);
  config.device = 0;
  MoE moe = moe::open_moe(agent, config, fake_gpus_of_moe()).value();
  moe.abort();
  EXPECT_THAT(moe.join(std::vector<std::string>{"on_gpu0", "on_gpu1", "on_gpu2"}, 1h).error().message,
              HasSubstr("rank 1 (agent \"on_gpu1\"): it was interrupted by its caller"));
}

TEST(MoEOnGpus, an_agent_without_a_backend_for_gpus_is_refused) {
  Agent agent = Agent::open("without_gpus", {.backends = {"shm"}}).value();
  MoEConfig config = three_on_gpus();
  config.device = 0;
  const auto opened = moe::open_moe(agent, config, fake_gpus_of_moe());
  EXPECT_EQ(opened.code(), Code::not_supported);
  EXPECT_THAT(opened.error().message, HasSubstr("which needs an agent with backend cuda_ipc"));
  EXPECT_TRUE(agent.regions().empty());
}

}  // namespace
}  // namespace headrace
