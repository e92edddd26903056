// SPDX-License-Identifier: Apache-2.0
#include "kernels/gather_scatter/one_run.cuh"
#include "unit/gpu/kernels/kernels_test.hpp"

#include <headrace/plugin/kernels/gather_scatter_v1.h>

#include <gmock/gmock.h>

namespace headrace::gpu {
namespace {

using testing::HasSubstr;

class GatherScatterTest : public KernelsTest {
 protected:
  [[nodiscard]] cuda::Outcome move(const headrace_move_pages_v1& args) const {
    return family.launch<&headrace_gather_scatter_v1::move_pages>(args, stream.handle());
  }
  [[nodiscard]] cuda::Outcome move(const headrace_move_runs_v1& args) const {
    return family.launch<&headrace_gather_scatter_v1::move_runs>(args, stream.handle());
  }
  [[nodiscard]] cuda::Outcome move(const headrace_move_few_v1& args) const {
    return family.launch<&headrace_gather_scatter_v1::move_few>(args, stream.handle());
  }

  const KernelFamily<headrace_gather_scatter_v1> family =
      KernelFamily<headrace_gather_scatter_v1>::of(kernels, HEADRACE_GATHER_SCATTER_FAMILY,
                                                   HEADRACE_GATHER_SCATTER_FAMILY_VERSION)
          .value();
};

TEST_F(GatherScatterTest, pages_move_to_the_places_that_their_indices_name) {
  for (const std::size_t page : {1u, 3u, 16u, 512u, 4095u, 4096u, 5000u}) {
    constexpr std::uint32_t count = 40;
    const std::size_t stride = page + 5;
    const auto source = filled(count * stride), target = filled(count * stride);
    const auto from = shuffled(count), to = shuffled(count);
    const auto from_table = table(from), to_table = table(to);
    auto expected = copy_of(target);
    for (std::uint32_t i = 0; i < count; ++i)
      for (std::size_t byte = 0; byte < page; ++byte)
        expected[to[i] * stride + byte] = at(source)[from[i] * stride + byte];
    headrace_move_pages_v1 args{};
    args.struct_size = sizeof args;
    args.source = side(source.address(), stride, page, &from_table);
    args.target = side(target.address(), stride, page, &to_table);
    args.count = count;
    ASSERT_EQ(move(args), cuda::Outcome::success);
    ASSERT_TRUE(stream.wait_idle());
    EXPECT_EQ(copy_of(target), expected) << page;
  }
}

TEST_F(GatherScatterTest, pages_of_several_memories_move_in_one_launch) {
  constexpr std::size_t page = 48, lead = 16;
  const auto one = filled(lead + 10 * page), two = filled(lead + 10 * page);
  const auto target = filled(20 * page);
  // Regions are named by the index, as in every list: page i lies in region_of[indices[i]].
  const std::vector<std::uint32_t> region_of{0, 1, 1, 0, 0, 0, 0, 0, 0, 1}, indices{9, 8, 0, 1, 2};
  const auto bases = table(std::vector<std::uint64_t>{one.address(), two.address()});
  const auto region_table = table(region_of), index_table = table(indices);
  auto expected = copy_of(target);
  for (std::size_t i = 0; i < indices.size(); ++i)
    std::memcpy(&expected[i * page], at(region_of[indices[i]] == 0 ? one : two) + lead + indices[i] * page,
                page);
  headrace_move_pages_v1 args{};
  args.struct_size = sizeof args;
  args.source = side(lead, page, page, &index_table);
  args.source.columns.region_of = column<std::uint32_t>(region_table);
  args.source.bases = column<std::uint64_t>(bases);
  args.target = side(target.address(), page, page);
  args.count = indices.size();
  for (const std::uint32_t flags : {0U, HEADRACE_MOVE_BASES_ALIGNED}) {
    args.flags = flags;
    const char* const kernel = flags == 0 ? "headrace_move_any_pages" : "headrace_move_small_pages";
    const int before = fake.calls(kernel);
    ASSERT_EQ(move(args), cuda::Outcome::success);
    ASSERT_TRUE(stream.wait_idle());
    EXPECT_EQ(copy_of(target), expected);
    EXPECT_EQ(fake.calls(kernel), before + 1) << kernel;
    std::memset(at(target), 0, expected.size());
    std::fill(expected.begin() + indices.size() * page, expected.end(), 0);
  }
}

TEST_F(GatherScatterTest, runs_of_any_length_are_moved_and_a_count_signals_the_end) {
  const auto source = filled(10000), target = filled(10000);
  const std::vector<std::uint64_t> from{0, 5001, 77}, to{9000, 1, 4000};
  const std::vector<std::uint32_t> lengths{1000, 3999, 0};
  const auto from_table = table(from), to_table = table(to), length_table = table(lengths);
  const auto word = PinnedMemory::allocate(device, sizeof(std::uint64_t)).value();
  const auto state = table(std::vector<std::uint64_t>(sizeof(headrace_move_state_v1) / 8, 0));
  auto expected = copy_of(target);
  for (std::size_t i = 0; i < from.size(); ++i)
    std::memcpy(&expected[to[i]], at(source) + from[i], lengths[i]);
  headrace_move_runs_v1 args{};
  args.struct_size = sizeof args;
  args.sources = from_table.address();
  args.targets = to_table.address();
  args.lengths = length_table.address();
  args.source_base = source.address();
  args.target_base = target.address();
  args.count = from.size();
  args.done = {word.address(), 0, state.address()};
  const auto* const told = reinterpret_cast<const std::uint64_t*>(word.bytes().data());
  for (std::uint64_t launch = 1; launch <= 3; ++launch) {
    ASSERT_EQ(move(args), cuda::Outcome::success);
    ASSERT_TRUE(stream.wait_idle());
    EXPECT_EQ(*told, launch);
  }
  EXPECT_EQ(copy_of(target), expected);
}

TEST_F(GatherScatterTest, a_few_runs_are_named_inside_the_launch) {
  const auto source = filled(1000), target = filled(1000);
  const auto word = PinnedMemory::allocate(device, sizeof(std::uint64_t)).value();
  headrace_move_few_v1 args{};
  args.struct_size = sizeof args;
  args.count = 2;
  args.sources[0] = source.address() + 1, args.targets[0] = target.address() + 7, args.lengths[0] = 33;
  args.sources[1] = source.address() + 500, args.targets[1] = target.address() + 900, args.lengths[1] = 100;
  args.done = {word.address(), 5, 0};
  auto expected = copy_of(target);
  std::memcpy(&expected[7], at(source) + 1, 33);
  std::memcpy(&expected[900], at(source) + 500, 100);
  ASSERT_EQ(move(args), cuda::Outcome::success);
  ASSERT_TRUE(stream.wait_idle());
  EXPECT_EQ(copy_of(target), expected);
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(word.bytes().data()), 5u);
}

TEST_F(GatherScatterTest, one_small_aligned_run_has_a_kernel_of_its_own) {
  constexpr std::uint64_t most = kernels::gather_scatter::one_run_most_bytes;
  const auto source = filled(2 * most), target = filled(2 * most);
  const auto word = PinnedMemory::allocate(device, sizeof(std::uint64_t)).value();
  const auto state = table(std::vector<std::uint64_t>(sizeof(headrace_move_state_v1) / 8, 0));
  const auto run = [&](std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    headrace_move_few_v1 args{};
    args.struct_size = sizeof args;
    args.count = 1;
    args.sources[0] = source.address() + from, args.targets[0] = target.address() + to;
    args.lengths[0] = bytes;
    args.done = {word.address(), 5, state.address()};
    return args;
  };
  const auto by_its_own = [&](const headrace_move_few_v1& args) {
    const int before = fake.calls("headrace_move_one");
    auto expected = copy_of(target);
    for (std::uint64_t i = 0; i < args.count; ++i)
      std::memcpy(&expected[args.targets[i] - target.address()],
                  reinterpret_cast<const void*>(args.sources[i]), args.lengths[i]);
    EXPECT_EQ(move(args), cuda::Outcome::success);
    EXPECT_TRUE(stream.wait_idle());
    EXPECT_EQ(copy_of(target), expected);
    return fake.calls("headrace_move_one") == before + 1;
  };
  EXPECT_TRUE(by_its_own(run(16, 4096, 4096)));
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(word.bytes().data()), 5u);
  EXPECT_TRUE(by_its_own(run(0, 0, 16)));
  EXPECT_TRUE(by_its_own(run(0, 0, most)));
  // A run that this kernel cannot move goes to the kernel for a few runs.
  EXPECT_FALSE(by_its_own(run(0, 0, most + 16)));
  EXPECT_FALSE(by_its_own(run(8, 0, 4096)));
  EXPECT_FALSE(by_its_own(run(0, 8, 4096)));
  EXPECT_FALSE(by_its_own(run(0, 0, 4088)));
  auto two = run(0, 0, 4096);
  two.count = 2;
  two.sources[1] = source.address() + 4096, two.targets[1] = target.address() + 8192, two.lengths[1] = 16;
  EXPECT_FALSE(by_its_own(two));
  auto counted = run(0, 0, 4096);
  counted.done.value = 0;
  EXPECT_FALSE(by_its_own(counted));
  auto silent = run(0, 0, 4096);
  silent.done = {};
  EXPECT_FALSE(by_its_own(silent));
}

TEST_F(GatherScatterTest, invalid_arguments_are_refused_before_a_launch) {
  headrace_move_few_v1 few{};
  few.struct_size = sizeof few;
  few.count = HEADRACE_MOVE_FEW_MOST + 1;
  EXPECT_EQ(move(few), cuda::Outcome::invalid_value);
  headrace_move_pages_v1 pages{};
  pages.struct_size = sizeof pages;
  EXPECT_EQ(move(pages), cuda::Outcome::invalid_value) << "the pages have no length";
  pages.source.columns.page_bytes = 4096;
  EXPECT_EQ(move(pages), cuda::Outcome::invalid_value) << "pages of different lengths";
  pages.target.columns.page_bytes = 4096;
  static constexpr std::uint64_t words[] = {4096};
  static constexpr std::uint32_t numbers[] = {0};
  const auto with = [&](auto change) {
    auto changed = pages;
    change(changed.target);
    return move(changed);
  };
  EXPECT_EQ(with([](auto& side) { side.columns.offsets = words; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(with([](auto& side) { side.columns.lengths = words; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(with([](auto& side) { side.columns.region_of = numbers; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(with([](auto& side) { side.bases = words; }), cuda::Outcome::invalid_value);
  pages.done.word = 4096;
  EXPECT_EQ(move(pages), cuda::Outcome::invalid_value) << "a done word without a state";
  pages.done.word = 0;
  pages.bounds = pages.refused = 4096;
  EXPECT_EQ(move(pages), cuda::Outcome::invalid_value) << "bounds without indices";
  EXPECT_EQ(fake.calls("cuLaunchKernelEx"), 0);
}

TEST_F(GatherScatterTest, a_fault_is_reported_by_the_stream_and_breaks_the_context) {
  const auto source = filled(4096);
  headrace_move_few_v1 args{};
  args.struct_size = sizeof args;
  args.count = 1;
  args.sources[0] = source.address(), args.targets[0] = source.address() + 2048, args.lengths[0] = 4096;
  ASSERT_EQ(move(args), cuda::Outcome::success);
  const auto idle = stream.wait_idle();
  ASSERT_FALSE(idle);
  EXPECT_EQ(idle.code(), Code::backend_failed);
  EXPECT_THAT(idle.error().message, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_EQ(move(args), cuda::Outcome::illegal_address);
}

TEST_F(GatherScatterTest, a_captured_launch_counts_at_every_replay) {
  const auto source = filled(4096), target = filled(4096);
  const auto word = PinnedMemory::allocate(device, sizeof(std::uint64_t)).value();
  const auto state = table(std::vector<std::uint64_t>(sizeof(headrace_move_state_v1) / 8, 0));
  const ContextGuard guard(*device);
  ASSERT_EQ(driver.stream_begin_capture(stream.handle(), cuda::CaptureMode::relaxed), cuda::Outcome::success);
  headrace_move_pages_v1 args{};
  args.struct_size = sizeof args;
  args.source = side(source.address(), 4096, 4096);
  args.target = side(target.address(), 4096, 4096);
  args.count = 1;
  args.done = {word.address(), 0, state.address()};
  ASSERT_EQ(move(args), cuda::Outcome::success);
  cuda::Graph graph = nullptr;
  cuda::GraphExec exec = nullptr;
  ASSERT_EQ(driver.stream_end_capture(stream.handle(), &graph), cuda::Outcome::success);
  ASSERT_EQ(driver.graph_instantiate(&exec, graph, 0), cuda::Outcome::success);
  const auto* const told = reinterpret_cast<const std::uint64_t*>(word.bytes().data());
  EXPECT_EQ(*told, 0u);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(driver.graph_launch(exec, stream.handle()), cuda::Outcome::success);
  ASSERT_TRUE(stream.wait_idle());
  EXPECT_EQ(*told, 2u);
  EXPECT_EQ(copy_of(target), copy_of(source));
  EXPECT_EQ(driver.graph_exec_destroy(exec), cuda::Outcome::success);
  EXPECT_EQ(driver.graph_destroy(graph), cuda::Outcome::success);
}

}  // namespace
}  // namespace headrace::gpu
