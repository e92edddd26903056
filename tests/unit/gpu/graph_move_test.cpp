// SPDX-License-Identifier: Apache-2.0
#include "gpu/graph_move.hpp"

#include "gpu_test.hpp"
#include "support/fake_graph.hpp"
#include "support/page_side.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace headrace::gpu {
namespace {

using test::GpuGraph;
using test::PageSide;
using testing::HasSubstr;
using Bytes = std::vector<unsigned char>;
using Numbers = std::vector<std::uint32_t>;

constexpr std::uint32_t local_pages = 40, remote_pages = 60, most = 30;

class GraphMoveTest : public GpuTest {
 protected:
  GraphMoveTest()
      : device(open()),
        kernels(Kernels::open(library(), device).value()),
        mover(Mover::make(kernels).value()),
        stream(Stream::make(device).value()),
        here(DeviceMemory::allocate(device, local_pages * std::size_t{8192}).value()),
        there(DeviceMemory::allocate(device, remote_pages * std::size_t{8192}).value()) {}

  Numbers some(std::uint32_t count, std::uint32_t of) {
    Numbers numbers(of);
    std::iota(numbers.begin(), numbers.end(), 0U);
    std::ranges::shuffle(numbers, random);
    numbers.resize(count);
    return numbers;
  }
  void fill() {
    for (const DeviceMemory* memory : {&here, &there})
      std::generate_n(reinterpret_cast<std::uint32_t*>(memory->address()), memory->bytes() / 4,
                      std::ref(random));
  }
  static unsigned char* at(const DeviceMemory& memory) {
    return reinterpret_cast<unsigned char*>(memory.address());
  }

  headrace_prepare_v1 request(headrace_op_v1 way, PageSide local, PageSide remote, std::uint64_t count) {
    local_side = std::move(local), remote_side = std::move(remote);
    local_view = local_side.view(), remote_view = remote_side.view();
    headrace_prepare_v1 args{};
    args.struct_size = sizeof args;
    args.op = way;
    args.count = count;
    args.bytes = count * page;
    args.local = &local_view;
    args.remote = &remote_view;
    return args;
  }
  /// `most` pages of `page_bytes`, scattered on both sides, at multiples of `apart` bytes.
  std::unique_ptr<GraphMove> make(headrace_op_v1 way, std::uint64_t page_bytes, std::uint64_t apart) {
    op = way, page = page_bytes, stride = apart;
    PageSide local = test::uniform_side(&here, 0, stride, page),
             remote = test::uniform_side(&there, 0, stride, page);
    local.indices = locals = some(most, local_pages);
    remote.indices = remotes = some(most, remote_pages);
    return prepare(request(op, local, remote, most));
  }
  std::unique_ptr<GraphMove> prepare(const headrace_prepare_v1& args) {
    const auto address_of = [](void* handle) { return static_cast<DeviceMemory*>(handle)->address(); };
    return GraphMove::prepare(mover, args, {local_pages, remote_pages}, address_of, address_of).value();
  }
  [[nodiscard]] headrace_indices_v1 indices(const std::uint32_t* local, const std::uint32_t* remote,
                                            std::uint64_t count,
                                            headrace_memory_kind_v1 kind = HEADRACE_DRAM) const {
    headrace_indices_v1 args{};
    args.struct_size = sizeof args;
    args.local = local, args.remote = remote, args.count = count;
    args.kind = kind;
    args.stream = stream.handle();
    return args;
  }
  Result<void> change(GraphMove& move, const std::uint32_t* local, const std::uint32_t* remote,
                      std::uint64_t count, headrace_memory_kind_v1 kind = HEADRACE_DRAM) const {
    return move.set_indices(indices(local, remote, count, kind));
  }
  /// Replays once, and compares all of both memories with a loop over the pages in `locals` and `remotes`.
  void expect_replay(const GpuGraph& graph) {
    fill();
    Bytes source_now(op == HEADRACE_READ ? at(there) : at(here),
                     (op == HEADRACE_READ ? at(there) + there.bytes() : at(here) + here.bytes()));
    Bytes expected(op == HEADRACE_READ ? at(here) : at(there),
                   (op == HEADRACE_READ ? at(here) + here.bytes() : at(there) + there.bytes()));
    for (std::size_t i = 0; i < locals.size(); ++i) {
      const std::uint64_t from = op == HEADRACE_READ ? remotes[i] : locals[i],
                          to = op == HEADRACE_READ ? locals[i] : remotes[i];
      std::memcpy(&expected[to * stride], &source_now[from * stride], page);
    }
    graph.replay();
    const DeviceMemory& target = op == HEADRACE_READ ? here : there;
    EXPECT_EQ(std::memcmp(expected.data(), at(target), expected.size()), 0)
        << locals.size() << " pages of " << page << " bytes";
  }
  /// Indices in GPU memory, as a model would write them.
  DeviceMemory on_gpu(const Numbers& numbers) {
    auto memory = DeviceMemory::allocate(device, numbers.size() * sizeof numbers[0]).value();
    std::memcpy(at(memory), numbers.data(), memory.bytes());
    return memory;
  }
  static const std::uint32_t* numbers_at(const DeviceMemory& memory) {
    return reinterpret_cast<const std::uint32_t*>(memory.address());
  }

  std::mt19937 random{11};
  std::shared_ptr<const Device> device;
  std::shared_ptr<const Kernels> kernels;
  std::shared_ptr<const Mover> mover;
  Stream stream;
  DeviceMemory here, there;
  PageSide local_side, remote_side;
  headrace_side_v1 local_view{}, remote_view{};
  headrace_op_v1 op = HEADRACE_READ;
  std::uint64_t page = 0, stride = 0;
  Numbers locals, remotes;  // the pages of the next replay
};

TEST_F(GraphMoveTest, replays_move_pages_of_any_length_and_are_counted) {
  for (const auto way : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const auto& [bytes, apart] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{{1, 1},
                                                                                           {7, 9},
                                                                                           {16, 16},
                                                                                           {48, 64},
                                                                                           {512, 512},
                                                                                           {1000, 1003},
                                                                                           {4095, 4096},
                                                                                           {4096, 4096},
                                                                                           {8192, 8192}}) {
      const auto move = make(way, bytes, apart);
      const GpuGraph graph(stream, [&] { ASSERT_TRUE(move->record(stream.handle())); });
      EXPECT_EQ(move->replays(), 0U);
      for (std::uint64_t replay = 1; replay <= 3; ++replay) {
        expect_replay(graph);
        EXPECT_EQ(move->replays(), replay);
      }
      EXPECT_FALSE(move->take_refused());
    }
  }
}

TEST_F(GraphMoveTest, a_hundred_replays_each_move_other_indices_from_the_host) {
  for (const auto way : {HEADRACE_READ, HEADRACE_WRITE}) {
    const auto move = make(way, 1000, 1008);
    const GpuGraph graph(stream, [&] { ASSERT_TRUE(move->record(stream.handle())); });
    for (int replay = 0; replay < 100; ++replay) {
      const auto count = static_cast<std::uint32_t>(random() % (most + 1));
      locals = some(count, local_pages), remotes = some(count, remote_pages);
      const Numbers given_locals = locals, given_remotes = remotes;
      ASSERT_TRUE(change(*move, locals.data(), remotes.data(), count));
      std::ranges::fill(locals, 999U), std::ranges::fill(remotes, 999U);  // the move has its own copy
      locals = given_locals, remotes = given_remotes;
      expect_replay(graph);
    }
    EXPECT_EQ(move->replays(), 100U);
  }
}

TEST_F(GraphMoveTest, pages_that_are_grids_replay_with_other_indices_within_their_bounds) {
  // [4][6] runs of 128 bytes, transposed by the move, in pages 8192 bytes apart.
  headrace_page_grid_v1 grid{};
  grid.dimensions = 2;
  grid.run_bytes = 128;
  grid.runs = 24;
  grid.counts[0] = 4, grid.local_strides[0] = 6 * 256, grid.remote_strides[0] = 128;
  grid.counts[1] = 6, grid.local_strides[1] = 256, grid.remote_strides[1] = 4 * 128;
  const PageSide local = test::uniform_side(&here, 0, 8192, 24 * 128),
                 remote = test::uniform_side(&there, 0, 8192, 24 * 128);
  headrace_prepare_v1 args = request(HEADRACE_READ, local, remote, most);
  args.grid = &grid;
  const auto move = prepare(args);
  const GpuGraph graph(stream, [&] { ASSERT_TRUE(move->record(stream.handle())); });
  for (int replay = 0; replay < 5; ++replay) {
    const auto count = replay == 0 ? most : static_cast<std::uint32_t>(random() % (most + 1));
    if (replay == 0) {
      locals.resize(most), remotes.resize(most);
      std::iota(locals.begin(), locals.end(), 0U), std::iota(remotes.begin(), remotes.end(), 0U);
    } else {
      locals = some(count, local_pages), remotes = some(count, remote_pages);
      ASSERT_TRUE(change(*move, locals.data(), remotes.data(), count));
    }
    fill();
    Bytes expected(at(here), at(here) + here.bytes());
    for (std::uint32_t i = 0; i < count; ++i)
      for (std::uint64_t a = 0; a < 4; ++a)
        for (std::uint64_t b = 0; b < 6; ++b)
          std::memcpy(&expected[locals[i] * 8192 + (a * 6 + b) * 256],
                      at(there) + remotes[i] * 8192 + (b * 4 + a) * 128, 128);
    graph.replay();
    ASSERT_EQ(std::memcmp(expected.data(), at(here), expected.size()), 0) << "replay " << replay;
  }
  EXPECT_GT(fake.calls("headrace_move_checked_grid_tiles"), 0);
  EXPECT_FALSE(move->take_refused());
  locals = {0, local_pages}, remotes = {3, 4};
  const auto on_gpu_locals = on_gpu(locals), on_gpu_remotes = on_gpu(remotes);
  ASSERT_TRUE(change(*move, numbers_at(on_gpu_locals), numbers_at(on_gpu_remotes), 2, HEADRACE_VRAM));
  graph.replay();
  const auto refused = move->take_refused();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->page, 1U);
  EXPECT_TRUE(refused->of_target);
}

TEST_F(GraphMoveTest, a_side_without_new_indices_keeps_its_first_ones) {
  const auto move = make(HEADRACE_READ, 512, 512);
  const GpuGraph graph(stream, [&] { ASSERT_TRUE(move->record(stream.handle())); });
  remotes = some(20, remote_pages);
  locals.resize(20);
  ASSERT_TRUE(change(*move, nullptr, remotes.data(), 20));
  expect_replay(graph);
  locals = some(7, local_pages);
  remotes.resize(7);
  ASSERT_TRUE(change(*move, locals.data(), nullptr, 7));
  expect_replay(graph);
}

TEST_F(GraphMoveTest, indices_that_a_gpu_wrote_are_checked_and_a_bad_one_is_reported_once) {
  for (const auto way : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const std::uint64_t bytes : {48U, 512U, 1001U, 4096U}) {
      const auto move = make(way, bytes, bytes);
      const GpuGraph graph(stream, [&] { ASSERT_TRUE(move->record(stream.handle())); });
      const Numbers good_locals = some(most, local_pages), good_remotes = some(most, remote_pages);
      for (const bool in_local : {true, false}) {
        Numbers bad_locals = good_locals, bad_remotes = good_remotes;
        (in_local ? bad_locals : bad_remotes)[17] = in_local ? local_pages : 0xffff'ffffU;
        const auto on_gpu_locals = on_gpu(bad_locals), on_gpu_remotes = on_gpu(bad_remotes);
        ASSERT_TRUE(
            change(*move, numbers_at(on_gpu_locals), numbers_at(on_gpu_remotes), most, HEADRACE_VRAM));
        locals = good_locals, remotes = good_remotes;
        locals.erase(locals.begin() + 17), remotes.erase(remotes.begin() + 17);
        expect_replay(graph);
        const auto refused = move->take_refused();
        ASSERT_TRUE(refused);
        EXPECT_EQ(refused->page, 17U);
        EXPECT_EQ(refused->of_target, in_local == (way == HEADRACE_READ));
        EXPECT_FALSE(move->take_refused());
      }
    }
  }
}

TEST_F(GraphMoveTest, indices_that_the_graph_itself_copies_are_read_at_every_replay) {
  const auto move = make(HEADRACE_WRITE, 4096, 4096);
  const auto table = on_gpu(some(most, local_pages));
  const GpuGraph graph(stream, [&] {
    const auto frozen = move->record_indices(indices(locals.data(), nullptr, 10));
    ASSERT_FALSE(frozen);
    EXPECT_EQ(frozen.code(), Code::invalid_argument);
    EXPECT_THAT(frozen.error().message, HasSubstr("at every replay"));
    ASSERT_TRUE(move->record_indices(indices(numbers_at(table), nullptr, 10, HEADRACE_VRAM)));
    ASSERT_TRUE(move->record(stream.handle()));
  });
  remotes.resize(10);
  for (int replay = 0; replay < 10; ++replay) {
    locals = some(10, local_pages);
    std::memcpy(at(table), locals.data(), locals.size() * sizeof locals[0]);
    expect_replay(graph);
  }
}

TEST_F(GraphMoveTest, pages_of_different_lengths_are_replayed_and_have_no_indices_to_change) {
  PageSide local, remote;
  local.regions = {&here}, remote.regions = {&there};
  local.offsets = {0, 5000, 9000}, remote.offsets = {70'000, 1, 300};
  local.lengths = remote.lengths = {4000, 77, 2};
  auto args = request(HEADRACE_WRITE, local, remote, 3);
  args.bytes = 4079;
  const auto move = prepare(args);
  const GpuGraph graph(stream, [&] { ASSERT_TRUE(move->record(stream.handle())); });
  for (int replay = 0; replay < 2; ++replay) {
    fill();
    graph.replay();
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_EQ(std::memcmp(at(here) + local.offsets[i], at(there) + remote.offsets[i], local.lengths[i]), 0);
  }
  EXPECT_EQ(move->replays(), 2U);
  const Numbers numbers{0, 1, 2};
  EXPECT_EQ(change(*move, numbers.data(), nullptr, 3).code(), Code::not_supported);
}

TEST_F(GraphMoveTest, contiguous_pages_are_moved_by_the_kernel_so_their_indices_may_change) {
  op = HEADRACE_READ, page = stride = 4096;
  const auto move = prepare(
      request(op, test::uniform_side(&here, 0, page, page), test::uniform_side(&there, 0, page, page), 8));
  const GpuGraph graph(stream, [&] { ASSERT_TRUE(move->record(stream.handle())); });
  locals = remotes = {0, 1, 2, 3, 4, 5, 6, 7};
  expect_replay(graph);
  remotes = some(8, remote_pages);
  ASSERT_TRUE(change(*move, nullptr, remotes.data(), 8));
  expect_replay(graph);
}

TEST_F(GraphMoveTest, a_move_without_pages_is_replayed_and_counted) {
  const auto move = prepare(
      request(HEADRACE_READ, test::uniform_side(&here, 0, 16, 16), test::uniform_side(&there, 0, 16, 16), 0));
  const GpuGraph graph(stream, [&] { ASSERT_TRUE(move->record(stream.handle())); });
  graph.replay();
  EXPECT_EQ(move->replays(), 1U);
}

TEST_F(GraphMoveTest, queued_changes_apply_to_the_replays_queued_after_them_until_too_many_are_queued) {
  const auto move = make(HEADRACE_READ, 512, 512);
  const GpuGraph graph(stream, [&] { ASSERT_TRUE(move->record(stream.handle())); });
  fill();
  const Bytes before(at(here), at(here) + here.bytes());
  fake.hold();
  // Each replay moves page `step` of `there` to page `step` of `here`.
  for (std::uint32_t step = 0; step < local_pages; ++step) {
    ASSERT_TRUE(change(*move, &step, &step, 1));
    graph.launch();
  }
  std::uint32_t queued = local_pages;
  const std::uint32_t zero = 0;
  while (change(*move, &zero, &zero, 1)) ASSERT_LT(++queued, 1000U);
  EXPECT_EQ(queued, 64U);
  EXPECT_EQ(change(*move, &zero, &zero, 1).code(), Code::would_block);
  fake.release();
  ASSERT_TRUE(stream.wait_idle());
  EXPECT_EQ(std::memcmp(at(here), at(there), std::size_t{512} * local_pages), 0);
  EXPECT_EQ(move->replays(), local_pages);
  EXPECT_TRUE(change(*move, &zero, &zero, 1));
}

TEST_F(GraphMoveTest, more_indices_than_pages_are_refused) {
  const auto move = make(HEADRACE_READ, 512, 512);
  const Numbers many(most + 1, 0);
  EXPECT_EQ(change(*move, many.data(), nullptr, most + 1).code(), Code::invalid_argument);
}

TEST_F(GraphMoveTest, a_destroyed_move_waits_for_changes_that_still_write_to_its_table) {
  auto move = make(HEADRACE_READ, 512, 512);
  fake.hold();
  const std::uint32_t zero = 0;
  ASSERT_TRUE(change(*move, &zero, &zero, 1));
  const int waits = fake.calls("cuEventSynchronize");
  std::jthread releases([&] {
    while (fake.calls("cuEventSynchronize") == waits) std::this_thread::yield();
    fake.release();
  });
  move.reset();
  EXPECT_TRUE(stream.poll_idle().value());
}

TEST_F(GraphMoveTest, an_error_of_the_driver_is_reported_and_the_next_change_works) {
  const auto move = make(HEADRACE_READ, 512, 512);
  const Numbers other_locals = some(most, local_pages), other_remotes = some(most, remote_pages);
  for (const char* call : {"cuMemcpyAsync", "cuMemsetD32Async", "cuEventRecord"}) {
    fake.fail(call, cuda::Outcome::out_of_memory);
    EXPECT_EQ(change(*move, other_locals.data(), other_remotes.data(), most).code(), Code::exhausted) << call;
  }
  fake.fail("cuLaunchKernelEx", cuda::Outcome::launch_out_of_resources);
  EXPECT_EQ(move->record(stream.handle()).code(), Code::backend_failed);
  const GpuGraph graph(stream, [&] { ASSERT_TRUE(move->record(stream.handle())); });
  locals = other_locals, remotes = other_remotes;
  ASSERT_TRUE(change(*move, locals.data(), remotes.data(), most));
  expect_replay(graph);
}

TEST_F(GraphMoveTest, our_calls_during_a_capture_of_another_stream_do_not_invalidate_it) {
  const auto other = Stream::make(device).value();
  const GpuGraph graph(other, [&] {
    std::jthread beside([&] {
      // Allocates tables, waits for their upload, polls events and streams.
      const auto own = Mover::make(kernels).value();
      const auto address_of = [](void* handle) { return static_cast<DeviceMemory*>(handle)->address(); };
      page = 512;
      PageSide local = test::uniform_side(&here, 0, 512, 512),
               remote = test::uniform_side(&there, 0, 512, 512);
      local.indices = some(most, local_pages);
      const auto args = request(HEADRACE_READ, local, remote, most);
      auto posted = PreparedMove::prepare(own, args, address_of, address_of).value();
      EXPECT_TRUE(posted.post(stream.handle()));
      EXPECT_TRUE(stream.wait_idle());
      EXPECT_TRUE(stream.poll_idle().value());
      EXPECT_TRUE(posted.poll_done());
    });
  });
  graph.replay();
  int spoilt = 0;  // 1: an ordinary call of the driver invalidates the capture
  {
    const ContextGuard current(*device);
    cuda::Graph lost = nullptr;
    ASSERT_EQ(driver.stream_begin_capture(other.handle(), cuda::CaptureMode::global), cuda::Outcome::success);
    std::jthread([&] {
      spoilt = driver.stream_query(stream.handle()) == cuda::Outcome::stream_capture_unsupported ? 1 : 0;
    }).join();
    EXPECT_EQ(driver.stream_end_capture(other.handle(), &lost), cuda::Outcome::stream_capture_invalidated);
  }
  EXPECT_EQ(spoilt, 1);
}

}  // namespace
}  // namespace headrace::gpu
