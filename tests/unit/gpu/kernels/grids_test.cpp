// SPDX-License-Identifier: Apache-2.0
#include "kernels/grids/grids.hpp"

#include "unit/gpu/kernels/kernels_test.hpp"

#include <array>
#include <string>

namespace headrace::gpu {
namespace {

class GridsTest : public KernelsTest {
 protected:
  [[nodiscard]] cuda::Outcome move(const headrace_move_grids_v1& args) const {
    return family.launch<&headrace_grids_v1::move_grids>(args, stream.handle());
  }

  const KernelFamily<headrace_grids_v1> family =
      KernelFamily<headrace_grids_v1>::of(kernels, HEADRACE_GRIDS_FAMILY, HEADRACE_GRIDS_FAMILY_VERSION)
          .value();
};

/// Pages of 6 runs, a [2][3] array that is transposed, with gaps between the runs. The caller adds the base
/// addresses.
headrace_move_grids_v1 transposing(std::uint64_t run_bytes, std::uint64_t gap) {
  headrace_move_grids_v1 args{};
  args.struct_size = sizeof args;
  args.pages.struct_size = sizeof args.pages;
  args.dimensions = 2;
  args.run_bytes = run_bytes;
  args.counts[0] = 2, args.counts[1] = 3;
  const std::uint64_t step = run_bytes + gap;
  args.source_strides[0] = 3 * step, args.source_strides[1] = step;
  args.target_strides[0] = step, args.target_strides[1] = 2 * step;
  for (headrace_move_side_v1* const side : {&args.pages.source, &args.pages.target}) {
    side->columns.stride_bytes = 6 * step;
    side->columns.page_bytes = 6 * run_bytes;
  }
  return args;
}

TEST_F(GridsTest, the_fitting_kernel_moves_the_runs_of_grids_to_the_places_of_their_strides) {
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
    args.pages.source = side(source.address(), 6 * step, 6 * which.run_bytes, &from_table);
    args.pages.target = side(target.address(), 6 * step, 6 * which.run_bytes, &to_table);
    args.pages.count = count;
    auto expected = copy_of(target);
    for (std::uint32_t page = 0; page < count; ++page)
      for (std::uint64_t i = 0; i < 2; ++i)
        for (std::uint64_t j = 0; j < 3; ++j)
          std::memcpy(&expected[(to[page] * 6 + j * 2 + i) * step],
                      at(source) + (from[page] * 6 + i * 3 + j) * step, which.run_bytes);
    const std::string kernel = std::string("headrace_move_grid_") + which.kernel;
    const int before = fake.calls(kernel);
    ASSERT_EQ(move(args), cuda::Outcome::success);
    ASSERT_TRUE(stream.wait_idle());
    EXPECT_EQ(copy_of(target), expected);
    EXPECT_EQ(fake.calls(kernel), before + 1) << kernel;
  }
}

TEST_F(GridsTest, an_invalid_grid_is_refused) {
  const auto moved = [this](auto change) {
    headrace_move_grids_v1 args = transposing(16, 0);
    change(args);
    return move(args);
  };
  EXPECT_EQ(moved([](auto&) {}), cuda::Outcome::success) << "no pages";
  EXPECT_EQ(moved([](auto& args) { args.dimensions = 0; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(moved([](auto& args) { args.dimensions = 5; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(moved([](auto& args) { args.counts[0] = 0; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(moved([](auto& args) { args.run_bytes = 15; }), cuda::Outcome::invalid_value);
  EXPECT_EQ(moved([](auto& args) {
              args.counts[0] = args.counts[1] = 1;
              args.pages.source.columns.page_bytes = args.pages.target.columns.page_bytes = args.run_bytes;
            }),
            cuda::Outcome::invalid_value)
      << "one run";
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
    const kernels::grids::Divisor divisor = kernels::grids::Divisor::of(std::max(by, 2u));
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
    std::uint64_t& page_bytes = args.pages.source.columns.page_bytes;
    args.run_bytes = page_bytes = 1 + numbers() % 100;
    std::array<std::uint64_t, 4> counts{1, 1, 1, 1}, n{};
    for (std::uint32_t d = 0; d < args.dimensions; ++d) {
      page_bytes *= args.counts[d] = counts[d] = 1 + numbers() % 5;
      args.source_strides[d] = numbers() >> 30;
      args.target_strides[d] = numbers() >> 30;
    }
    const auto grid = kernels::grids::run_grid(args);
    if (page_bytes == args.run_bytes) {
      EXPECT_FALSE(grid) << "pages of one run each are gather_scatter's";
      continue;
    }
    ASSERT_TRUE(grid);
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

}  // namespace
}  // namespace headrace::gpu
