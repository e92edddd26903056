// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/move_file.hpp"

#include "support/page_side.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

namespace headrace::cuda_ipc {
namespace {

using Shape = MoveList::Side::Shape;

constexpr ToldRegion near_region{7, HEADRACE_VRAM, 1 << 20, 99}, far_region{8, HEADRACE_DRAM, 1 << 20, 0};

MoveFile written(headrace_op_v1 op, const test::PageSide& near, const test::PageSide& far,
                 std::uint64_t count, const headrace_page_grid_v1* grid = nullptr) {
  const headrace_side_v1 local = near.view(), remote = far.view();
  headrace_prepare_v1 args{};
  args.struct_size = sizeof args;
  args.op = op;
  args.count = count;
  args.local = &local;
  args.remote = &remote;
  args.grid = grid;
  return write_move_file(
             args, [](void*) { return near_region; }, [](void*) { return far_region; })
      .value();
}

std::string body_of(const MoveFile& file) {
  std::string body(static_cast<std::size_t>(::lseek(file.descriptor.get(), 0, SEEK_END)) - move_control_bytes,
                   '\0');
  EXPECT_EQ(::pread(file.descriptor.get(), body.data(), body.size(), move_control_bytes),
            static_cast<ssize_t>(body.size()));
  return body;
}

/// Handles are only told of here.
test::PageSide side() { return test::uniform_side(nullptr, 64, 4096, 1000); }

test::PageSide listed() {
  test::PageSide listed = side();
  listed.regions = {nullptr, nullptr};
  listed.region_of = {0, 1, 0};
  listed.offsets = {5, 6, 7};
  listed.lengths = {10, 20, 30};
  return listed;
}

TEST(MoveFile, keeps_regular_lists_regular) {
  auto indexed = side();
  indexed.indices = {4, 2, 0};
  const auto list = read_move_list(written(HEADRACE_WRITE, side(), indexed, 3).descriptor.get()).value();
  EXPECT_EQ(list.op, HEADRACE_WRITE);
  EXPECT_EQ(list.count, 3U);
  EXPECT_EQ(list.page_bytes, 1000U);
  EXPECT_EQ(list.initiators.shape, Shape::regular);
  EXPECT_EQ(list.initiators.regions, std::vector{near_region});
  EXPECT_EQ(list.initiators.base, 64U);
  EXPECT_EQ(list.owners.shape, Shape::indexed);
  EXPECT_EQ(list.owners.regions, std::vector{far_region});
  EXPECT_EQ(list.owners.stride, 4096U);
  EXPECT_EQ(list.owners.indices, indexed.indices);
}

TEST(MoveFile, tells_pages_of_any_length_in_their_order) {
  auto shuffled = listed();
  shuffled.indices = {2, 1, 0};
  const auto list = read_move_list(written(HEADRACE_READ, shuffled, listed(), 3).descriptor.get()).value();
  EXPECT_EQ(list.page_bytes, 0U);
  EXPECT_EQ(list.lengths, (std::vector<std::uint64_t>{30, 20, 10}));
  EXPECT_EQ(list.initiators.offsets, (std::vector<std::uint64_t>{7, 6, 5}));
  EXPECT_EQ(list.initiators.region_of, (std::vector<std::uint32_t>{0, 1, 0}));
  EXPECT_EQ(list.owners.offsets, (std::vector<std::uint64_t>{5, 6, 7}));
  EXPECT_TRUE(list.owners.indices.empty());
}

/// Pages of 1000 bytes, in 20 runs.
headrace_page_grid_v1 grid() {
  headrace_page_grid_v1 grid{};
  grid.dimensions = 2;
  grid.run_bytes = 50;
  grid.runs = 20;
  grid.counts[0] = 4, grid.local_strides[0] = 600, grid.remote_strides[0] = 50;
  grid.counts[1] = 5, grid.local_strides[1] = 100, grid.remote_strides[1] = 200;
  return grid;
}

TEST(MoveFile, tells_the_grid_of_its_pages_and_checks_what_they_spread_over) {
  const headrace_page_grid_v1 told = grid();
  const auto list = read_move_list(written(HEADRACE_READ, side(), side(), 3, &told).descriptor.get()).value();
  ASSERT_TRUE(list.grid);
  EXPECT_EQ(std::memcmp(&*list.grid, &told, sizeof told), 0);
  EXPECT_EQ(list.page_bytes, 1000U);
  // A page ends 3 * 50 + 4 * 200 + 50 bytes behind its begin on the owner's side.
  const auto length = [](std::uint64_t bytes) {
    return [bytes](std::size_t) { return std::optional(bytes); };
  };
  EXPECT_EQ(list.check(length(64 + 2 * 4096 + 1000)).value(), 3000U);
  EXPECT_EQ(list.check(length(64 + 2 * 4096 + 999)).error().page, 2U);
  // Only the initiator's side spreads over more than the page's bytes.
  auto far = list;
  far.initiators.regions[0].length = 64 + 2 * 4096 + 3 * 600 + 4 * 100 + 49;
  EXPECT_EQ(far.check(length(1 << 20)).error().page, 2U);
  ++far.initiators.regions[0].length;
  EXPECT_TRUE(far.check(length(1 << 20)));
}

TEST(MoveFile, refuses_a_grid_that_cannot_be) {
  const auto decode = [](auto change) {
    headrace_page_grid_v1 told = grid();
    change(told);
    const test::PageSide pages = test::uniform_side(nullptr, 64, 4096, told.runs * told.run_bytes);
    return decode_move_list(body_of(written(HEADRACE_READ, pages, pages, 3, &told)));
  };
  EXPECT_TRUE(decode([](auto&) {}));
  EXPECT_EQ(decode([](auto& told) { told.local_strides[1] = 0; }).code(), Code::corrupt);
  EXPECT_EQ(decode([](auto& told) { told.remote_strides[0] = UINT64_MAX; }).code(), Code::corrupt);
  EXPECT_EQ(decode([](auto& told) { told.counts[0] = 1; }).code(), Code::corrupt);
  EXPECT_EQ(decode([](auto& told) { told.counts[0] = 5; }).code(), Code::corrupt)
      << "more than the page's bytes";
  EXPECT_EQ(decode([](auto& told) { told.counts[0] = told.counts[1] = UINT64_MAX / 2; }).code(),
            Code::corrupt);
  // More bytes than they spread over would be more than the region has, as often as anybody likes.
  const auto dense = decode([](auto& told) { told.remote_strides[0] = told.remote_strides[1] = 1; }).value();
  EXPECT_EQ(dense.check([](std::size_t) { return std::optional<std::uint64_t>(1 << 20); }).code(),
            Code::invalid_argument);
}

TEST(MoveFile, lets_pages_go_backward_as_far_as_their_region_begins) {
  // Prepared lists that go backward are regular, too: their stride wraps around.
  const auto backward = [](std::uint64_t base) {
    return test::uniform_side(nullptr, base, -std::uint64_t{4096}, 1000);
  };
  const auto length = [](std::size_t) { return std::optional<std::uint64_t>(1 << 20); };
  const auto checked = [&](const test::PageSide& near, const test::PageSide& far) {
    return read_move_list(written(HEADRACE_WRITE, near, far, 3).descriptor.get()).value().check(length);
  };
  EXPECT_EQ(checked(backward(3 * 4096), backward(2 * 4096)).value(), 3000U);
  EXPECT_EQ(checked(side(), backward(2 * 4096 - 1)).error().page, 2U);
  EXPECT_EQ(checked(backward(4096 - 1), side()).error().page, 1U);
}

TEST(MoveFile, names_the_first_page_that_lies_outside) {
  auto far = side();
  far.indices = {1, 255, 256, 0};  // the last whole one is 255
  const auto list = read_move_list(written(HEADRACE_READ, side(), far, 4).descriptor.get()).value();
  const auto length = [](std::uint64_t bytes) {
    return [bytes](std::size_t) { return std::optional(bytes); };
  };
  EXPECT_EQ(list.check(length(64 + 256 * 4096 + 1000)).value(), 4000U);
  const auto outside = list.check(length(64 + 256 * 4096 + 999));
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.code(), Code::invalid_argument);
  EXPECT_EQ(outside.error().page, 2U);
  EXPECT_EQ(list.check([](std::size_t) { return std::optional<std::uint64_t>(); }).code(), Code::not_found);
}

TEST(MoveFile, cut_or_lengthened_is_corrupt) {
  const headrace_page_grid_v1 told = grid();
  for (const auto& file :
       {written(HEADRACE_READ, side(), side(), 3), written(HEADRACE_READ, listed(), listed(), 3),
        written(HEADRACE_READ, side(), side(), 3, &told)}) {
    const std::string body = body_of(file);
    EXPECT_TRUE(decode_move_list(body));
    for (std::size_t length = 0; length < body.size(); ++length)
      EXPECT_EQ(decode_move_list(body.substr(0, length)).code(), Code::corrupt);
    EXPECT_EQ(decode_move_list(body + "x").code(), Code::corrupt);
  }
}

TEST(MoveFile, with_flipped_bits_is_decoded_or_refused_and_checked_without_harm) {
  std::mt19937 random(3);
  const headrace_page_grid_v1 told = grid();
  for (const auto& file :
       {written(HEADRACE_READ, side(), side(), 3), written(HEADRACE_READ, listed(), listed(), 3),
        written(HEADRACE_READ, side(), side(), 3, &told)}) {
    const std::string body = body_of(file);
    for (int round = 0; round < 3000; ++round) {
      std::string changed = body;
      for (int flips = 0; flips < 3; ++flips)
        changed[random() % body.size()] ^= static_cast<char>(1 << random() % 8);
      if (const auto list = decode_move_list(changed); list && list->count < 1000) {
        (void)list->check([](std::size_t) { return std::optional<std::uint64_t>(100'000); });
      }
    }
  }
}

TEST(MoveControl, a_post_is_begun_or_called_off_and_never_both) {
  const MoveFile file = written(HEADRACE_READ, side(), side(), 3);
  MoveControl here = open_move_control(file.descriptor.get()).value(),
              there = open_move_control(file.descriptor.get()).value();
  EXPECT_FALSE(there.begin()) << "nothing is asked for";
  here.ask(1);
  EXPECT_TRUE(here.withdraw(1));
  EXPECT_TRUE(here.was_withdrawn(1));
  EXPECT_FALSE(there.begin());
  here.ask(2);
  EXPECT_EQ(there.begin(), 2U);
  EXPECT_FALSE(here.withdraw(2));
  EXPECT_FALSE(here.has_ended(2));
  EXPECT_FALSE(there.begin()) << "it runs";
  there.end_well(2);
  EXPECT_TRUE(here.has_ended(2));
  EXPECT_TRUE(here.outcome(2).status.ok());
  here.ask(3);
  ASSERT_EQ(there.begin(), 3U);
  there.fail(3, {{Code::not_found, 0, 17}, std::string(5000, 'x')});
  EXPECT_TRUE(here.has_ended(3));
  EXPECT_EQ(here.outcome(3).status.code, Code::not_found);
  EXPECT_EQ(here.outcome(3).status.page, 17U);
  EXPECT_EQ(here.outcome(3).text.size(), max_failure_bytes);
}

}  // namespace
}  // namespace headrace::cuda_ipc
