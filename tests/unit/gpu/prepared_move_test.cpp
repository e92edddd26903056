// SPDX-License-Identifier: Apache-2.0
#include "gpu/prepared_move.hpp"

#include "gpu_test.hpp"
#include "memory/page_cursor.hpp"
#include "support/page_side.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace headrace::gpu {
namespace {

using test::PageSide;
using testing::HasSubstr;

/// A region of device memory. The region handle of a request is a pointer to one.
struct Region {
  DeviceMemory memory;
  [[nodiscard]] unsigned char* bytes() const { return reinterpret_cast<unsigned char*>(memory.address()); }
};

class PreparedMoveTest : public GpuTest {
 protected:
  PreparedMoveTest()
      : device(open()),
        kernels(Kernels::open(library(), device).value()),
        mover(Mover::make(kernels).value()),
        stream(Stream::make(device).value()) {}

  Region region(std::size_t bytes) {
    Region made{DeviceMemory::allocate(device, bytes).value()};
    std::generate_n(made.bytes(), bytes, [this] { return static_cast<unsigned char>(random()); });
    return made;
  }
  std::vector<std::uint32_t> shuffled(std::uint32_t count, std::uint32_t of) {
    std::vector<std::uint32_t> numbers(of);
    std::iota(numbers.begin(), numbers.end(), 0u);
    std::ranges::shuffle(numbers, random);
    numbers.resize(count);
    return numbers;
  }
  headrace_prepare_v1 request(PageSide& local, PageSide& remote, std::uint64_t count,
                              headrace_op_v1 op = HEADRACE_WRITE) {
    headrace_prepare_v1 args{};
    args.struct_size = sizeof args;
    args.op = op;
    args.count = count;
    local_view = local.view();
    remote_view = remote.view();
    args.local = &local_view;
    args.remote = &remote_view;
    for (std::uint64_t i = 0; i < count; ++i) args.bytes += page_length(args, i);
    return args;
  }
  Result<PreparedMove> prepare(const headrace_prepare_v1& args, Touches touches = Touches::gpus) {
    const auto address_of = [](void* handle) { return static_cast<Region*>(handle)->memory.address(); };
    return PreparedMove::prepare(mover, args, address_of, address_of, touches);
  }
  /// Prepares a request, posts it twice and compares the memories with a loop over the pages. Returns the
  /// method of the move.
  MoveMethod expect_moves(const headrace_prepare_v1& args, Touches touches = Touches::gpus) {
    auto move = prepare(args, touches);
    EXPECT_TRUE(move) << move.error().message;
    if (!move) return MoveMethod::nothing;
    for (int post = 0; post < 2; ++post) {
      std::vector<std::vector<unsigned char>> moved;
      for (std::uint64_t i = 0; i < args.count; ++i) {
        const auto& from = args.op == HEADRACE_WRITE ? *args.local : *args.remote;
        const unsigned char* const at = page(from, i);
        moved.emplace_back(at, at + page_length(args, i));
      }
      EXPECT_TRUE(move->post(stream.handle()));
      EXPECT_TRUE(stream.wait_idle());
      EXPECT_TRUE(move->poll_done());
      for (std::uint64_t i = 0; i < args.count; ++i) {
        const auto& to = args.op == HEADRACE_WRITE ? *args.remote : *args.local;
        EXPECT_TRUE(std::ranges::equal(moved[i], std::span(page(to, i), moved[i].size()))) << "page " << i;
      }
      // Other bytes for the next post.
      const auto& from = args.op == HEADRACE_WRITE ? *args.local : *args.remote;
      for (std::uint64_t i = 0; i < args.count; ++i)
        if (page_length(args, i) > 0) ++*page(from, i);
    }
    return move->method();
  }
  static unsigned char* page(const headrace_side_v1& side, std::uint64_t i) {
    return static_cast<Region*>(side_region(side, i))->bytes() + offset_of(side.columns, i);
  }
  static PageSide pages_of(Region& region, std::uint64_t page_bytes,
                           std::vector<std::uint32_t> indices = {}) {
    PageSide side = test::uniform_side(&region, 0, page_bytes, page_bytes);
    side.indices = std::move(indices);
    return side;
  }

  headrace_side_v1 local_view{}, remote_view{};
  std::mt19937 random{7};
  std::shared_ptr<const Device> device;
  std::shared_ptr<const Kernels> kernels;
  std::shared_ptr<const Mover> mover;
  Stream stream;
};

TEST_F(PreparedMoveTest, scattered_pages_are_moved_by_index) {
  for (const auto op : {HEADRACE_READ, HEADRACE_WRITE}) {
    Region here = region(100 * 1000), there = region(200 * 1000);
    PageSide local = pages_of(here, 1000, shuffled(50, 100)),
             remote = pages_of(there, 1000, shuffled(50, 200));
    EXPECT_EQ(expect_moves(request(local, remote, 50, op)), MoveMethod::pages);
  }
}

TEST_F(PreparedMoveTest, one_run_is_moved_by_the_copy_engine) {
  Region here = region(64 * 512), there = region(64 * 512);
  PageSide local = pages_of(here, 512), remote = pages_of(there, 512);
  const int launches = fake.calls("cuLaunchKernelEx");
  EXPECT_EQ(expect_moves(request(local, remote, 64)), MoveMethod::copy);
  EXPECT_EQ(fake.calls("cuLaunchKernelEx"), launches);
}

TEST_F(PreparedMoveTest, long_runs_to_host_memory_are_moved_by_the_copy_engine_and_short_ones_are_not) {
  const auto settings = MoveSettings{.host_copy_bytes = 1000};
  mover = Mover::make(kernels, settings).value();
  Region here = region(100 * 1000), there = region(100 * 1000);
  PageSide local = pages_of(here, 1000, shuffled(12, 100)), remote = pages_of(there, 1000, shuffled(12, 100));
  const auto args = request(local, remote, 12);
  EXPECT_EQ(expect_moves(args, Touches::host), MoveMethod::copy);
  EXPECT_EQ(expect_moves(args, Touches::gpus), MoveMethod::pages);
  PageSide shorter = pages_of(here, 999, shuffled(12, 100)),
           its_remote = pages_of(there, 999, shuffled(12, 100));
  EXPECT_EQ(expect_moves(request(shorter, its_remote, 12), Touches::host), MoveMethod::pages);
}

TEST_F(PreparedMoveTest, a_copy_that_the_driver_refuses_leaves_no_queued_copy) {
  mover = Mover::make(kernels, MoveSettings{.host_copy_bytes = 1000}).value();
  Region here = region(100 * 1000), there = region(100 * 1000);
  PageSide local = pages_of(here, 1000, {0, 5, 9}), remote = pages_of(there, 1000, {3, 1, 7});
  auto move = prepare(request(local, remote, 3), Touches::host);
  ASSERT_TRUE(move);
  fake.fail("cuMemcpyAsync", cuda::Outcome::out_of_memory, 1, 1);
  EXPECT_EQ(move->post(stream.handle()).code(), Code::exhausted);
  EXPECT_TRUE(move->poll_done());
  EXPECT_TRUE(stream.poll_idle().value());
}

TEST_F(PreparedMoveTest, a_few_runs_are_moved_by_the_courier_unless_an_order_is_asked_for) {
  MoveSettings settings;
  settings.courier.on = true;
  settings.courier.most_bytes = 10'000;
  mover = Mover::make(kernels, settings).value();
  Region here = region(40 * 1000), there = region(40 * 1000);
  // Every other page, so that no two pages touch and merge.
  const auto pages = [](std::uint32_t count) {
    std::vector<std::uint32_t> numbers(count);
    for (std::uint32_t i = 0; i < count; ++i) numbers[i] = 2 * i;
    return numbers;
  };
  PageSide local = pages_of(here, 1000, pages(11)), remote = pages_of(there, 1000, pages(11));
  EXPECT_FALSE(prepare(request(local, remote, 11))->fits_courier()) << "eleven runs";
  PageSide longer = pages_of(here, 1001, pages(10)), its_remote = pages_of(there, 1001, pages(10));
  EXPECT_FALSE(prepare(request(longer, its_remote, 10))->fits_courier()) << "more bytes than the limit";
  for (const auto op : {HEADRACE_READ, HEADRACE_WRITE}) {
    const auto args = request(local, remote, 10, op);
    auto move = prepare(args);
    ASSERT_TRUE(move->fits_courier());
    EXPECT_TRUE(move->poll_done());
    for (const Order order : {Order::none, Order::stream, Order::none}) {
      const int launches = fake.calls("cuLaunchKernelEx") - fake.calls("headrace_courier");
      const auto& from = op == HEADRACE_WRITE ? *args.local : *args.remote;
      const auto& to = op == HEADRACE_WRITE ? *args.remote : *args.local;
      for (std::uint64_t i = 0; i < 10; ++i) ++*page(from, i);
      ASSERT_TRUE(move->post(stream.handle(), order));
      while (!move->poll_done()) std::this_thread::yield();
      EXPECT_FALSE(move->was_dropped());
      for (std::uint64_t i = 0; i < 10; ++i)
        EXPECT_TRUE(std::ranges::equal(std::span(page(from, i), 1000), std::span(page(to, i), 1000)));
      EXPECT_EQ(fake.calls("cuLaunchKernelEx") - fake.calls("headrace_courier") - launches,
                order == Order::stream ? 1 : 0);
    }
  }
}

/// Long pages between GPUs. The limit from which a page counts as long is set low.
class BatchTest : public PreparedMoveTest {
 protected:
  BatchTest() { mover = Mover::make(kernels, MoveSettings{.few_bytes = 0, .gpu_copy_bytes = 1000}).value(); }

  PageSide scattered(Region& region, std::uint32_t pages) {
    return pages_of(region, 1000, shuffled(pages, 300));
  }
  [[nodiscard]] int batches() const { return fake.calls("cuMemcpyBatchAsync"); }

  Region here = region(300 * 1000), there = region(300 * 1000);
};

TEST_F(BatchTest, long_runs_between_gpus_are_moved_by_the_copy_engine_in_one_call) {
  for (const auto op : {HEADRACE_READ, HEADRACE_WRITE}) {
    PageSide local = scattered(here, 16), remote = scattered(there, 16);
    const int before = batches();
    EXPECT_EQ(expect_moves(request(local, remote, 16, op)), MoveMethod::batch);
    EXPECT_EQ(batches(), before + 2) << "one call for each post";
  }
}

TEST_F(BatchTest, the_kernel_moves_shorter_runs_too_many_runs_or_all_if_the_option_is_zero) {
  PageSide many = scattered(here, 256), its_remote = scattered(there, 256);
  std::iota(many.indices.begin(), many.indices.end(),
            0u);  // ascending here and descending there, so that no two pages merge
  std::ranges::generate(its_remote.indices, [next = 299u]() mutable { return next--; });
  EXPECT_EQ(expect_moves(request(many, its_remote, 256)), MoveMethod::batch);
  many.indices.push_back(256), its_remote.indices.push_back(43);
  EXPECT_EQ(expect_moves(request(many, its_remote, 257)), MoveMethod::pages);
  PageSide shorter = pages_of(here, 999, shuffled(16, 300)),
           its_other = pages_of(there, 999, shuffled(16, 300));
  EXPECT_EQ(expect_moves(request(shorter, its_other, 16)), MoveMethod::pages);
  mover = Mover::make(kernels, MoveSettings{.gpu_copy_bytes = 0}).value();
  PageSide local = scattered(here, 16), remote = scattered(there, 16);
  EXPECT_EQ(expect_moves(request(local, remote, 16)), MoveMethod::pages);
}

TEST_F(BatchTest, on_the_legacy_stream_the_kernel_moves_long_runs) {
  const ContextGuard current(*device);
  for (const cuda::Stream legacy : {cuda::legacy_stream, cuda::Stream{}}) {
    PageSide local = scattered(here, 16), remote = scattered(there, 16);
    auto move = prepare(request(local, remote, 16)).value();
    ASSERT_EQ(move.method(), MoveMethod::batch);
    ASSERT_TRUE(move.post(legacy));
    ASSERT_EQ(driver.stream_synchronize(legacy), cuda::Outcome::success);
    EXPECT_TRUE(move.poll_done());
    for (std::uint64_t i = 0; i < 16; ++i)
      EXPECT_TRUE(std::equal(page(local_view, i), page(local_view, i) + 1000, page(remote_view, i)));
    ASSERT_TRUE(move.post(stream.handle())) << "the next post uses another stream";
  }
  EXPECT_EQ(batches(), 2);
}

TEST_F(BatchTest, the_kernel_moves_long_runs_if_the_driver_does_not_support_batches) {
  fake.fail("cuMemcpyBatchAsync", cuda::Outcome::not_supported, 1, 2);
  PageSide local = scattered(here, 16), remote = scattered(there, 16);
  EXPECT_EQ(expect_moves(request(local, remote, 16)), MoveMethod::batch);
  EXPECT_EQ(batches(), 2);
}

TEST_F(BatchTest, a_batch_is_done_after_its_last_copy_and_not_before) {
  PageSide local = scattered(here, 16), remote = scattered(there, 16);
  auto move = prepare(request(local, remote, 16)).value();
  ASSERT_TRUE(move.post(stream.handle()));
  ASSERT_TRUE(stream.wait_idle());
  fake.hold();
  ASSERT_TRUE(move.post(stream.handle()));
  fake.step(16);
  EXPECT_FALSE(move.poll_done()) << "the write that signals the end has not run";
  fake.step(1);
  EXPECT_TRUE(move.poll_done());
  fake.release();
}

TEST_F(BatchTest, a_batch_that_the_driver_refuses_ends_with_the_drivers_error) {
  PageSide local = scattered(here, 16), remote = scattered(there, 16);
  auto move = prepare(request(local, remote, 16)).value();
  for (const char* const call : {"cuMemcpyBatchAsync", "cuStreamWriteValue64"}) {
    fake.fail(call, cuda::Outcome::out_of_memory);
    const auto posted = move.post(stream.handle());
    EXPECT_EQ(posted.code(), Code::exhausted) << call;
    EXPECT_THAT(posted.error().message, HasSubstr("out of memory"));
    EXPECT_TRUE(move.poll_done());
    EXPECT_TRUE(stream.poll_idle().value()) << "no copy outlives the post";
  }
  EXPECT_TRUE(move.post(stream.handle()));
}

TEST_F(PreparedMoveTest, a_few_runs_are_named_inside_the_launch) {
  Region here = region(8000), there = region(8000);
  PageSide local = pages_of(here, 1000, {0, 1, 5, 2}), remote = pages_of(there, 1000, {3, 4, 0, 7});
  const auto args = request(local, remote, 4);
  EXPECT_EQ(prepare(args)->runs(), 3u) << "the first two pages touch on both sides";
  EXPECT_EQ(expect_moves(args), MoveMethod::few);
}

TEST_F(PreparedMoveTest, pages_of_different_lengths_in_several_memories_are_moved_as_runs) {
  Region here = region(300000), one = region(200000), two = region(200000);
  PageSide local, remote;
  local.regions = {&here};
  remote.regions = {&one, &two};
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const std::uint64_t length = i == 30 ? 100000 : 1 + random() % 3000;
    local.offsets.push_back(at);
    local.lengths.push_back(length);
    remote.offsets.push_back(at / 2 + i);
    remote.region_of.push_back(i % 2);
    remote.lengths.push_back(length);
    at += length + random() % 2;
  }
  // Target pages must not overlap: the pages of one memory lie in ascending order with a gap of one byte.
  for (std::uint32_t memory = 0; memory < 2; ++memory) {
    std::uint64_t next = memory;
    for (std::uint32_t i = memory; i < 60; i += 2) {
      remote.offsets[i] = next;
      next += remote.lengths[i] + 1;
    }
    ASSERT_LE(next, 200000u);
  }
  EXPECT_EQ(expect_moves(request(local, remote, 60)), MoveMethod::runs);
}

/// The heads of a cache, transposed by the move: a page has [16 tokens][4 of 8 heads] runs of 256 bytes.
headrace_page_grid_v1 head_split() {
  headrace_page_grid_v1 grid{};
  grid.dimensions = 2;
  grid.run_bytes = 256;
  grid.runs = 64;
  grid.counts[0] = 16, grid.local_strides[0] = 8 * 256, grid.remote_strides[0] = 256;
  grid.counts[1] = 4, grid.local_strides[1] = 256, grid.remote_strides[1] = 16 * 256;
  return grid;
}

/// The bytes that the target memory must hold after the move of `args`.
void move_grids(const headrace_prepare_v1& args,
                const std::function<unsigned char*(const headrace_side_v1&, std::uint64_t)>& page,
                std::vector<std::pair<unsigned char*, std::vector<unsigned char>>>& expected) {
  const headrace_page_grid_v1& grid = *args.grid;
  for (std::uint64_t i = 0; i < args.count; ++i)
    for (std::uint64_t a = 0; a < grid.counts[0]; ++a)
      for (std::uint64_t b = 0; b < grid.counts[1]; ++b) {
        unsigned char* const here =
            page(*args.local, i) + a * grid.local_strides[0] + b * grid.local_strides[1];
        unsigned char* const there =
            page(*args.remote, i) + a * grid.remote_strides[0] + b * grid.remote_strides[1];
        const unsigned char* const from = args.op == HEADRACE_READ ? there : here;
        expected.emplace_back(args.op == HEADRACE_READ ? here : there,
                              std::vector(from, from + grid.run_bytes));
      }
}

TEST_F(PreparedMoveTest, pages_that_are_grids_are_moved_as_grids_for_indexed_and_listed_pages) {
  const headrace_page_grid_v1 grid = head_split();
  constexpr std::uint64_t block = 16 * 8 * 256, half = block / 2, count = 20;
  for (const auto op : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const bool listed : {false, true}) {
      Region here = region(count * block), one = region(count * half), two = region(count * half);
      PageSide local = test::uniform_side(&here, 4 * 256, block, half),
               remote = test::uniform_side(&one, 0, half, half);
      local.indices = shuffled(count, count);
      if (listed) {
        remote.regions = {&one, &two};
        for (std::uint64_t i = 0; i < count; ++i) {
          remote.offsets.push_back((count - 1 - i) * half);
          remote.region_of.push_back(static_cast<std::uint32_t>(i % 2));
        }
      }
      headrace_prepare_v1 args = request(local, remote, count, op);
      args.grid = &grid;
      auto move = prepare(args);
      ASSERT_TRUE(move) << move.error().message;
      EXPECT_EQ(move->method(), MoveMethod::grids);
      std::vector<std::pair<unsigned char*, std::vector<unsigned char>>> expected;
      move_grids(
          args, [](const headrace_side_v1& side, std::uint64_t i) { return page(side, i); }, expected);
      const int tiles = fake.calls("headrace_move_grid_tiles");
      ASSERT_TRUE(move->post(stream.handle()));
      ASSERT_TRUE(stream.wait_idle());
      EXPECT_TRUE(move->poll_done());
      EXPECT_EQ(fake.calls("headrace_move_grid_tiles"), tiles + 1);
      for (const auto& [target, bytes] : expected)
        ASSERT_TRUE(std::ranges::equal(std::span(target, bytes.size()), bytes));
    }
  }
}

TEST_F(PreparedMoveTest, the_few_runs_of_a_grid_are_named_inside_the_launch) {
  headrace_page_grid_v1 grid{};
  grid.dimensions = 1;
  grid.run_bytes = 100;
  grid.runs = grid.counts[0] = 4;
  grid.local_strides[0] = 200, grid.remote_strides[0] = 300;
  Region here = region(5000), there = region(5000);
  PageSide local = test::uniform_side(&here, 7, 1000, 400), remote = test::uniform_side(&there, 9, 2000, 400);
  headrace_prepare_v1 args = request(local, remote, 2);
  args.grid = &grid;
  auto move = prepare(args);
  ASSERT_TRUE(move);
  EXPECT_EQ(move->method(), MoveMethod::few);
  EXPECT_EQ(move->runs(), 8u);
  ASSERT_TRUE(move->post(stream.handle()));
  ASSERT_TRUE(stream.wait_idle());
  for (std::uint64_t i = 0; i < 2; ++i)
    for (std::uint64_t run = 0; run < 4; ++run)
      EXPECT_TRUE(std::ranges::equal(std::span(here.bytes() + 7 + i * 1000 + run * 200, 100),
                                     std::span(there.bytes() + 9 + i * 2000 + run * 300, 100)));
}

TEST_F(PreparedMoveTest, more_runs_than_a_launch_can_count_are_refused_with_the_limit) {
  headrace_page_grid_v1 grid = head_split();
  grid.counts[0] = 1u << 20;
  grid.runs = std::uint64_t{4} << 20;
  Region here = region(100), there = region(100);
  PageSide local = test::uniform_side(&here, 0, 1, grid.runs * 256),
           remote = test::uniform_side(&there, 0, 1, grid.runs * 256);
  headrace_prepare_v1 args = request(local, remote, 1000);
  args.grid = &grid;
  const auto refused = prepare(args);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), Code::not_supported);
  EXPECT_THAT(refused.error().message, HasSubstr("2147483647"));
}

TEST_F(PreparedMoveTest, long_runs_are_divided_among_many_warps) {
  Region here = region(4 << 20), there = region(4 << 20);
  PageSide local = pages_of(here, 1 << 20, {0, 2, 1}), remote = pages_of(there, 1 << 20, {3, 0, 2});
  const auto args = request(local, remote, 3);
  EXPECT_EQ(prepare(args)->runs(), 3u * 256);
  EXPECT_EQ(expect_moves(args), MoveMethod::runs);
}

TEST_F(PreparedMoveTest, a_move_without_pages_is_done_at_once) {
  Region here = region(100), there = region(100);
  PageSide local = pages_of(here, 10), remote = pages_of(there, 10);
  EXPECT_EQ(expect_moves(request(local, remote, 0)), MoveMethod::nothing);
}

TEST_F(PreparedMoveTest, a_move_is_not_done_before_its_bytes_have_moved) {
  Region here = region(50 * 1000), there = region(50 * 1000);
  PageSide local = pages_of(here, 1000, shuffled(50, 50)), remote = pages_of(there, 1000, shuffled(50, 50));
  fake.hold();  // the upload of the table waits, too
  auto move = prepare(request(local, remote, 50)).value();
  ASSERT_TRUE(move.post(stream.handle()));
  EXPECT_FALSE(move.poll_done());
  fake.step(3);  // the upload, its event, the wait of the post for that event
  EXPECT_FALSE(move.poll_done());
  fake.step(1);
  EXPECT_TRUE(move.poll_done());
  fake.release();
}

TEST_F(PreparedMoveTest, a_launch_that_the_driver_refuses_ends_the_post_with_an_error) {
  Region here = region(50 * 1000), there = region(50 * 1000);
  PageSide local = pages_of(here, 1000, shuffled(50, 50)), remote = pages_of(there, 1000, shuffled(50, 50));
  auto move = prepare(request(local, remote, 50)).value();
  fake.fail("cuLaunchKernelEx", cuda::Outcome::launch_out_of_resources);
  const auto refused = move.post(stream.handle());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), Code::backend_failed);
  EXPECT_THAT(refused.error().message, HasSubstr("move 50 runs on GPU 0"));
  EXPECT_TRUE(move.poll_done());
  ASSERT_TRUE(move.post(stream.handle()));
  EXPECT_TRUE(stream.wait_idle());
  EXPECT_TRUE(move.poll_done());
}

TEST_F(PreparedMoveTest, a_copy_whose_end_cannot_be_signaled_is_waited_for) {
  Region here = region(4096), there = region(4096);
  PageSide local = pages_of(here, 4096), remote = pages_of(there, 4096);
  auto move = prepare(request(local, remote, 1)).value();
  const int waits = fake.calls("cuStreamSynchronize");
  fake.fail("cuStreamWriteValue64", cuda::Outcome::not_supported);
  EXPECT_EQ(move.post(stream.handle()).code(), Code::not_supported);
  EXPECT_EQ(fake.calls("cuStreamSynchronize"), waits + 1);
}

TEST_F(PreparedMoveTest, a_failed_prepare_does_not_affect_the_next_one) {
  Region here = region(50 * 1000), there = region(50 * 1000);
  PageSide local = pages_of(here, 1000, shuffled(50, 50)), remote = pages_of(there, 1000, shuffled(50, 50));
  const auto args = request(local, remote, 50);
  for (const char* call :
       {"cuMemAlloc", "cuMemHostAlloc", "cuMemcpyAsync", "cuEventCreate", "cuEventRecord"}) {
    fake.fail(call, cuda::Outcome::out_of_memory);
    EXPECT_EQ(prepare(args).code(), Code::exhausted) << call;
  }
  EXPECT_EQ(expect_moves(args), MoveMethod::pages);
}

TEST_F(PreparedMoveTest, tables_are_reused) {
  Region here = region(500 * 1000), there = region(500 * 1000);
  PageSide local = pages_of(here, 1000, shuffled(500, 500)),
           remote = pages_of(there, 1000, shuffled(500, 500));
  const auto args = request(local, remote, 500);
  EXPECT_TRUE(prepare(args));
  const int allocations = fake.calls("cuMemAlloc");
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(prepare(args));
  EXPECT_EQ(fake.calls("cuMemAlloc"), allocations);
}

}  // namespace
}  // namespace headrace::gpu
