// SPDX-License-Identifier: Apache-2.0
// The host half of the kernels and their CPU references, over the fake driver. The device code itself runs on
// GPUs only.
#include "gpu/device_memory.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"
#include "gpu_test.hpp"
#include "kernels/gather_scatter/one_part.hpp"
#include "kernels/grids/grids.hpp"
#include "kernels/launch.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace headrace::gpu {
namespace {

using testing::AllOf;
using testing::HasSubstr;

static_assert(sizeof(kernels::LaunchConfig) == sizeof(cuda::LaunchConfig) &&
              offsetof(kernels::LaunchConfig, block_x) == offsetof(cuda::LaunchConfig, block_x) &&
              offsetof(kernels::LaunchConfig, stream) == offsetof(cuda::LaunchConfig, stream) &&
              offsetof(kernels::LaunchConfig, attribute_count) ==
                  offsetof(cuda::LaunchConfig, attribute_count));

class KernelsTest : public GpuTest {
 protected:
  KernelsTest()
      : device(open()),
        stream(Stream::make(device).value()),
        kernels(Kernels::open(library(), device).value()) {}

  /// Random bytes in device memory.
  DeviceMemory filled(std::size_t bytes) {
    auto memory = DeviceMemory::allocate(device, bytes).value();
    std::generate_n(at(memory), bytes, [this] { return static_cast<unsigned char>(random()); });
    return memory;
  }
  template <class T>
  DeviceMemory table(const std::vector<T>& values) {
    auto memory = DeviceMemory::allocate(device, values.size() * sizeof(T)).value();
    std::memcpy(at(memory), values.data(), values.size() * sizeof(T));
    return memory;
  }
  static unsigned char* at(const DeviceMemory& memory) {
    return reinterpret_cast<unsigned char*>(memory.address());
  }
  static std::vector<unsigned char> copy_of(const DeviceMemory& memory) {
    return {at(memory), at(memory) + memory.bytes()};
  }
  std::vector<std::uint32_t> shuffled(std::uint32_t count) {
    std::vector<std::uint32_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0u);
    std::ranges::shuffle(numbers, random);
    return numbers;
  }

  std::mt19937 random{4711};
  std::shared_ptr<const Device> device;
  Stream stream;
  std::shared_ptr<const Kernels> kernels;
};

TEST_F(KernelsTest, pages_move_to_the_places_that_their_indices_name) {
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
    args.source = {source.address(), stride, from_table.address(), 0, 0};
    args.target = {target.address(), stride, to_table.address(), 0, 0};
    args.page_bytes = page;
    args.count = count;
    ASSERT_EQ(kernels->move(args, stream.handle()), cuda::Outcome::success);
    ASSERT_TRUE(stream.wait_idle());
    EXPECT_EQ(copy_of(target), expected) << page;
  }
}

TEST_F(KernelsTest, pages_of_several_memories_move_in_one_launch) {
  constexpr std::size_t page = 48;
  const auto one = filled(10 * page), two = filled(10 * page);
  const auto target = filled(20 * page);
  const std::vector<std::uint32_t> base_of{1, 0, 1, 0, 0}, indices{9, 9, 0, 1, 2};
  const auto bases = table(std::vector<std::uint64_t>{one.address(), two.address()});
  const auto base_of_table = table(base_of), index_table = table(indices);
  auto expected = copy_of(target);
  for (std::size_t i = 0; i < base_of.size(); ++i)
    std::memcpy(&expected[i * page], at(base_of[i] == 0 ? one : two) + indices[i] * page, page);
  headrace_move_pages_v1 args{};
  args.struct_size = sizeof args;
  args.source = {0, page, index_table.address(), bases.address(), base_of_table.address()};
  args.target = {target.address(), page, 0, 0, 0};
  args.page_bytes = page;
  args.count = base_of.size();
  args.flags = HEADRACE_MOVE_BASES_ALIGNED;
  ASSERT_EQ(kernels->move(args, stream.handle()), cuda::Outcome::success);
  ASSERT_TRUE(stream.wait_idle());
  EXPECT_EQ(copy_of(target), expected);
}

/// Pages of 6 runs, a [2][3] array that is transposed, with gaps between the runs. The caller adds the base
/// addresses.
headrace_move_grids_v1 transposing(std::uint64_t run_bytes, std::uint64_t gap) {
  headrace_move_grids_v1 args{};
  args.struct_size = sizeof args;
  args.pages.struct_size = sizeof args.pages;
  args.pages.page_bytes = 6 * run_bytes;
  args.dimensions = 2;
  args.run_bytes = run_bytes;
  args.counts[0] = 2, args.counts[1] = 3;
  const std::uint64_t step = run_bytes + gap;
  args.source_strides[0] = 3 * step, args.source_strides[1] = step;
  args.target_strides[0] = step, args.target_strides[1] = 2 * step;
  args.pages.source.stride = args.pages.target.stride = 6 * step;
  return args;
}

TEST_F(KernelsTest, the_fitting_kernel_moves_the_runs_of_grids_to_the_places_of_their_strides) {
  struct Case {
    std::uint64_t run_bytes, gap;
    const char* kernel;
  };
  for (const Case& which :
       {Case{256, 0, "tiles"}, Case{128, 64, "tiles"}, Case{2048, 16, "tiles"}, Case{64, 0, "small"},
        Case{384, 16, "small"}, Case{4096, 16, "aligned"}, Case{256, 8, "any"}, Case{7, 0, "any"}}) {
    SCOPED_TRACE(which.run_bytes);
    constexpr std::uint32_t count = 40;
    headrace_move_grids_v1 args = transposing(which.run_bytes, which.gap);
    const std::uint64_t step = which.run_bytes + which.gap;
    const auto source = filled(count * 6 * step), target = filled(count * 6 * step);
    const auto from = shuffled(count), to = shuffled(count);
    const auto from_table = table(from), to_table = table(to);
    args.pages.source.base = source.address(), args.pages.source.indices = from_table.address();
    args.pages.target.base = target.address(), args.pages.target.indices = to_table.address();
    args.pages.count = count;
    auto expected = copy_of(target);
    for (std::uint32_t page = 0; page < count; ++page)
      for (std::uint64_t i = 0; i < 2; ++i)
        for (std::uint64_t j = 0; j < 3; ++j)
          std::memcpy(&expected[(to[page] * 6 + j * 2 + i) * step],
                      at(source) + (from[page] * 6 + i * 3 + j) * step, which.run_bytes);
    const std::string kernel = std::string("headrace_move_grid_") + which.kernel;
    const int before = fake.calls(kernel);
    ASSERT_EQ(kernels->move(args, stream.handle()), cuda::Outcome::success);
    ASSERT_TRUE(stream.wait_idle());
    EXPECT_EQ(copy_of(target), expected);
    EXPECT_EQ(fake.calls(kernel), before + 1) << kernel;
  }
}

TEST_F(KernelsTest, an_invalid_grid_is_refused) {
  const auto moved = [this](auto change) {
    headrace_move_grids_v1 args = transposing(16, 0);
    change(args);
    return kernels->move(args, stream.handle());
  };
  EXPECT_EQ(moved([](auto&) {}), cuda::Outcome::success) << "no pages";
  EXPECT_EQ(moved([](auto& args) { args.dimensions = 0; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(moved([](auto& args) { args.dimensions = 5; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(moved([](auto& args) { args.counts[0] = 0; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(moved([](auto& args) { args.run_bytes = 15; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(moved([](auto& args) { args.counts[0] = args.counts[1] = 1u << 20; }),
            cuda::Outcome::invalid_value);
  EXPECT_EQ(moved([](auto& args) { args.pages.count = 1u << 30; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(moved([](auto& args) { args.struct_size = sizeof(headrace_move_pages_v1); }),
            cuda::Outcome::invalid_value);
}

TEST(RunGrid, the_divisor_of_a_run_grid_divides_as_the_operator_does) {
  std::mt19937 numbers(5);
  constexpr unsigned most = (1u << 31) - 1;
  for (int round = 0; round < 20'000; ++round) {
    const unsigned by =
        round < 5000 ? static_cast<unsigned>(round + 2) : 2 + numbers() % (most - 1) / (1u << numbers() % 31);
    const kernels::Divisor divisor = kernels::Divisor::of(std::max(by, 2u));
    const unsigned multiple = most / divisor.by * divisor.by;
    for (const unsigned number : {0u, 1u, divisor.by - 1, divisor.by, multiple, multiple - 1, most, most - 1,
                                  static_cast<unsigned>(numbers() & most)})
      ASSERT_EQ(divisor.divide(number), number / divisor.by) << number << " / " << divisor.by;
  }
}

TEST(RunGrid, a_run_grid_gives_each_run_the_place_that_nested_loops_give) {
  std::mt19937_64 numbers(6);
  int walked = 0;
  for (int round = 0; round < 500; ++round) {
    headrace_move_grids_v1 args{};
    args.dimensions = static_cast<std::uint32_t>(1 + numbers() % HEADRACE_MOVE_GRID_MOST);
    args.run_bytes = args.pages.page_bytes = 1 + numbers() % 100;
    std::array<std::uint64_t, 4> counts{1, 1, 1, 1}, n{};
    for (std::uint32_t d = 0; d < args.dimensions; ++d) {
      args.pages.page_bytes *= args.counts[d] = counts[d] = 1 + numbers() % 5;
      args.source_strides[d] = numbers() >> 30;
      args.target_strides[d] = numbers() >> 30;
    }
    const auto grid = kernels::run_grid(args);
    ASSERT_TRUE(grid);
    if (grid->runs == 1) continue;
    ++walked;
    unsigned run = 0;
    for (n[0] = 0; n[0] < counts[0]; ++n[0])
      for (n[1] = 0; n[1] < counts[1]; ++n[1])
        for (n[2] = 0; n[2] < counts[2]; ++n[2])
          for (n[3] = 0; n[3] < counts[3]; ++n[3], ++run) {
            unsigned long long source = 11, target = 12, wanted_source = 11, wanted_target = 12;
            grid->add_place(run, source, target);
            for (std::uint32_t d = 0; d < args.dimensions; ++d) {
              wanted_source += n[d] * args.source_strides[d];
              wanted_target += n[d] * args.target_strides[d];
            }
            ASSERT_EQ(source, wanted_source);
            ASSERT_EQ(target, wanted_target);
          }
    EXPECT_EQ(run, grid->runs);
  }
  EXPECT_GT(walked, 400) << "most grids have several runs";
}

TEST_F(KernelsTest, runs_of_any_length_are_moved_and_a_count_signals_the_end) {
  const auto source = filled(10000), target = filled(10000);
  const std::vector<std::uint64_t> from{0, 5001, 77}, to{9000, 1, 4000};
  const std::vector<std::uint32_t> lengths{1000, 3999, 0};
  const auto from_table = table(from), to_table = table(to), length_table = table(lengths);
  const auto word = PinnedMemory::allocate(device, sizeof(std::uint64_t)).value();
  const auto state = table(std::vector<std::uint64_t>(sizeof(headrace_move_state_v1) / 8, 0));
  auto expected = copy_of(target);
  for (std::size_t i = 0; i < from.size(); ++i)
    std::memcpy(&expected[to[i]], at(source) + from[i], lengths[i]);
  headrace_move_parts_v1 args{};
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
    ASSERT_EQ(kernels->move(args, stream.handle()), cuda::Outcome::success);
    ASSERT_TRUE(stream.wait_idle());
    EXPECT_EQ(*told, launch);
  }
  EXPECT_EQ(copy_of(target), expected);
}

TEST_F(KernelsTest, a_few_runs_are_named_inside_the_launch) {
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
  ASSERT_EQ(kernels->move(args, stream.handle()), cuda::Outcome::success);
  ASSERT_TRUE(stream.wait_idle());
  EXPECT_EQ(copy_of(target), expected);
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(word.bytes().data()), 5u);
}

TEST_F(KernelsTest, one_small_aligned_run_has_a_kernel_of_its_own) {
  constexpr std::uint64_t most = kernels::one_part_most_bytes;
  const auto source = filled(2 * most), target = filled(2 * most);
  const auto word = PinnedMemory::allocate(device, sizeof(std::uint64_t)).value();
  const auto state = table(std::vector<std::uint64_t>(sizeof(headrace_move_state_v1) / 8, 0));
  const auto part = [&](std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
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
    EXPECT_EQ(kernels->move(args, stream.handle()), cuda::Outcome::success);
    EXPECT_TRUE(stream.wait_idle());
    EXPECT_EQ(copy_of(target), expected);
    return fake.calls("headrace_move_one") == before + 1;
  };
  EXPECT_TRUE(by_its_own(part(16, 4096, 4096)));
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(word.bytes().data()), 5u);
  EXPECT_TRUE(by_its_own(part(0, 0, 16)));
  EXPECT_TRUE(by_its_own(part(0, 0, most)));
  // A run that this kernel cannot move goes to the kernel for a few runs.
  EXPECT_FALSE(by_its_own(part(0, 0, most + 16)));
  EXPECT_FALSE(by_its_own(part(8, 0, 4096)));
  EXPECT_FALSE(by_its_own(part(0, 8, 4096)));
  EXPECT_FALSE(by_its_own(part(0, 0, 4088)));
  auto two = part(0, 0, 4096);
  two.count = 2;
  two.sources[1] = source.address() + 4096, two.targets[1] = target.address() + 8192, two.lengths[1] = 16;
  EXPECT_FALSE(by_its_own(two));
  auto counted = part(0, 0, 4096);
  counted.done.value = 0;
  EXPECT_FALSE(by_its_own(counted));
  auto silent = part(0, 0, 4096);
  silent.done = {};
  EXPECT_FALSE(by_its_own(silent));
}

TEST_F(KernelsTest, invalid_arguments_are_refused_before_a_launch) {
  headrace_move_few_v1 few{};
  few.struct_size = sizeof few;
  few.count = HEADRACE_MOVE_FEW_MOST + 1;
  EXPECT_EQ(kernels->move(few, stream.handle()), cuda::Outcome::invalid_value);
  headrace_move_pages_v1 pages{};
  pages.struct_size = sizeof pages;
  EXPECT_EQ(kernels->move(pages, stream.handle()), cuda::Outcome::invalid_value)
      << "the pages have no length";
  pages.page_bytes = 4096;
  pages.done.word = 4096;
  EXPECT_EQ(kernels->move(pages, stream.handle()), cuda::Outcome::invalid_value)
      << "a done word without a state";
  pages.done.word = 0;
  pages.bounds = pages.refused = 4096;
  EXPECT_EQ(kernels->move(pages, stream.handle()), cuda::Outcome::invalid_value) << "bounds without indices";
  EXPECT_EQ(fake.calls("cuLaunchKernelEx"), 0);
}

TEST_F(KernelsTest, a_fault_is_reported_by_the_stream_and_breaks_the_context) {
  const auto source = filled(4096);
  headrace_move_few_v1 args{};
  args.struct_size = sizeof args;
  args.count = 1;
  args.sources[0] = source.address(), args.targets[0] = source.address() + 2048, args.lengths[0] = 4096;
  ASSERT_EQ(kernels->move(args, stream.handle()), cuda::Outcome::success);
  const auto idle = stream.wait_idle();
  ASSERT_FALSE(idle);
  EXPECT_EQ(idle.code(), Code::backend_failed);
  EXPECT_THAT(idle.error().message, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_EQ(kernels->move(args, stream.handle()), cuda::Outcome::illegal_address);
}

TEST_F(KernelsTest, a_captured_launch_counts_at_every_replay) {
  const auto source = filled(4096), target = filled(4096);
  const auto word = PinnedMemory::allocate(device, sizeof(std::uint64_t)).value();
  const auto state = table(std::vector<std::uint64_t>(sizeof(headrace_move_state_v1) / 8, 0));
  const ContextGuard guard(*device);
  ASSERT_EQ(driver.stream_begin_capture(stream.handle(), cuda::CaptureMode::relaxed), cuda::Outcome::success);
  headrace_move_pages_v1 args{};
  args.struct_size = sizeof args;
  args.source = {source.address(), 4096, 0, 0, 0};
  args.target = {target.address(), 4096, 0, 0, 0};
  args.page_bytes = 4096;
  args.count = 1;
  args.done = {word.address(), 0, state.address()};
  ASSERT_EQ(kernels->move(args, stream.handle()), cuda::Outcome::success);
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

class KernelLibraryTest : public GpuTest {
 protected:
  KernelLibraryTest()
      : GpuTest({{.name = "A100", .major = 8, .minor = 0},
                 {.name = "RTX 4090", .major = 8, .minor = 9},
                 {.name = "H200", .major = 9, .minor = 0},
                 {.name = "B300", .major = 10, .minor = 3}}) {}
};

TEST_F(KernelLibraryTest, the_library_picks_the_closest_image_that_runs_on_the_gpu) {
  static constexpr char image[] = "FAKE";
  const std::vector<headrace_kernel_image_v1> images{{"sm_80", 8, 0, 0, 0, image, 5},
                                                     {"sm_86", 8, 6, 0, 0, image, 5},
                                                     {"sm_90", 9, 0, 0, 0, image, 5},
                                                     {"sm_90a", 9, 0, 1, 0, image, 5},
                                                     {"sm_100a", 10, 0, 1, 0, image, 5}};
  const auto table = kernels::make_table(images.data(), images.size());
  const auto library = KernelLibrary::from_table(table, "library").value();
  const auto devices = list_devices(driver).value();
  EXPECT_STREQ(library.image_for(devices[0]).value()->name, "sm_80");
  EXPECT_STREQ(library.image_for(devices[1]).value()->name, "sm_86");
  EXPECT_STREQ(library.image_for(devices[2]).value()->name, "sm_90a");
  const auto none = library.image_for(devices[3]);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.code(), Code::not_supported);
  EXPECT_THAT(none.error().message,
              AllOf(HasSubstr("B300"), HasSubstr("10.3"), HasSubstr("sm_80, sm_86, sm_90, sm_90a"),
                    HasSubstr("HEADRACE_CUDA_ARCHS=103")));
}

TEST_F(KernelLibraryTest, a_library_of_another_version_is_refused_with_its_version) {
  auto table = cuda::fake_kernels_table();
  table.version = "0.0.0-other";
  const auto library = KernelLibrary::from_table(table, "library");
  ASSERT_FALSE(library);
  EXPECT_THAT(library.error().message, AllOf(HasSubstr("0.0.0-other"), HasSubstr("one build")));
  table = cuda::fake_kernels_table();
  table.abi_major = 7;
  EXPECT_EQ(KernelLibrary::from_table(table, "library").code(), Code::not_supported);
  table = cuda::fake_kernels_table();
  table.move_few = nullptr;
  EXPECT_EQ(KernelLibrary::from_table(table, "library").code(), Code::corrupt);
  table = cuda::fake_kernels_table();
  table.move_grids = nullptr;
  EXPECT_EQ(KernelLibrary::from_table(table, "library").code(), Code::corrupt);
}

TEST_F(KernelLibraryTest, a_missing_library_is_not_supported) {
  const auto library = KernelLibrary::load("/nowhere/libheadrace_kernels.so");
  ASSERT_FALSE(library);
  EXPECT_EQ(library.code(), Code::not_supported);
}

TEST_F(KernelLibraryTest, an_image_that_does_not_load_is_named_and_leaves_nothing_behind) {
  const auto library = KernelLibrary::from_table(cuda::fake_kernels_table(), "library").value();
  const auto device = open(2);
  for (const auto& [outcome, words] :
       {std::pair{cuda::Outcome::no_binary_for_gpu, "no kernel image is available"},
        std::pair{cuda::Outcome::invalid_image, "device kernel image is invalid"}}) {
    fake.fail("cuModuleLoadData", outcome);
    const auto refused = Kernels::open(library, device);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.code(), Code::not_supported) << "the engine tries the next path";
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr("sm_90a on GPU 2"), HasSubstr(words),
                      HasSubstr("install a newer driver, or use a build by NVRTC 12.8")));
  }
  fake.fail("cuModuleGetFunction", cuda::Outcome::not_found, 3);
  const auto lacking = Kernels::open(library, device);
  ASSERT_FALSE(lacking);
  EXPECT_THAT(lacking.error().message, HasSubstr("find the kernel headrace_move_row_pages"));
  fake.fail("cuFuncLoad", cuda::Outcome::out_of_memory);
  EXPECT_EQ(Kernels::open(library, device).code(), Code::exhausted);
  EXPECT_EQ(fake.live().modules, 0);
  { const auto good = Kernels::open(library, device); }
  EXPECT_EQ(fake.live().modules, 0);
}

TEST_F(KernelLibraryTest, the_library_of_this_build_opens_if_there_was_a_compiler) {
#ifndef HEADRACE_TEST_KERNELS
  GTEST_SKIP() << "there is no compiler for device code";
#endif
  const auto library = KernelLibrary::load();
  ASSERT_TRUE(library) << library.error().message;
  EXPECT_GT(library->table().image_count, 0u);
  for (std::uint64_t i = 0; i < library->table().image_count; ++i)
    EXPECT_EQ(std::memcmp(library->table().images[i].data,
                          "\x7f"
                          "ELF",
                          4),
              0);
  if (library->image_for(list_devices(driver).value()[2])) {
    const auto kernels = Kernels::open(*library, open(2));
    ASSERT_TRUE(kernels) << kernels.error().message;
    EXPECT_EQ(fake.calls("cuFuncLoad"), 20);
  }
}

}  // namespace
}  // namespace headrace::gpu
