// SPDX-License-Identifier: Apache-2.0
// Requests to several peers in the order of a stream and in CUDA graphs: agents of this process with the
// backend cuda_ipc over fake GPUs.
#include "engine/request_group.hpp"
#include "engine/engine.hpp"
#include "gpu/stream.hpp"
#include "support/fake_gpus.hpp"
#include "support/fake_graph.hpp"
#include "unit/engine/linked_backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;
using test::GpuGraph;
using testing::HasSubstr;

constexpr std::uint32_t group_pages = 20, group_page_bytes = 300;
constexpr std::size_t list_bytes = std::size_t{group_pages} * group_page_bytes, peers = 3;

class RequestGroupTest : public testing::Test {
 protected:
  RequestGroupTest()
      : here(open("here")),
        stream(gpu::Stream::make(
                   gpu::Device::open(test::FakeGpus::of_this_process().driver().load().value(), 0).value())
                   .value()) {
    near = gpus().take_plain(peers * list_bytes);
    ours = registered(*here, near.base, peers * list_bytes, 0);
    for (std::size_t i = 0; i < peers; ++i) {
      far.push_back(gpus().take_plain(list_bytes));
      others.push_back(open("peer" + std::to_string(i)));
      theirs.push_back(registered(*others[i], far[i].base, list_bytes, i + 1));
      EXPECT_TRUE(here->peers().import(others[i]->regions().exported({}).value()).ok());
      EXPECT_TRUE(others[i]->peers().import(here->regions().exported({}).value()).ok());
    }
  }
  ~RequestGroupTest() override {
    here->close();
    for (const auto& other : others) other->close();
  }
  static test::FakeGpus& gpus() { return test::FakeGpus::of_this_process(); }

  std::shared_ptr<Engine> open(const std::string& name) { return open_on_gpus(name, folder, logger); }
  /// Other bytes in every page and for every seed, so that a page in a wrong place shows.
  static RegionId registered(Engine& engine, std::byte* base, std::size_t bytes, std::uint64_t seed) {
    test::fill_pattern({base, bytes}, seed);
    const MemoryRange range{.address = base, .length_bytes = bytes, .kind = MemoryKind::vram, .device = 0};
    return engine.regions().add({&range, 1}, {}, {}).value().front().id;
  }
  /// A request to the first `count` peers.
  std::shared_ptr<Transfer> make(Op op = Op::read, std::size_t count = peers) {
    std::vector<RequestPlan> parts;
    for (std::size_t i = 0; i < count; ++i) {
      RequestPlan plan;
      plan.op = op;
      plan.local =
          here->lists()
              .prepare(Side::local(), UniformPages{ours, i * list_bytes, 0, group_page_bytes, group_pages})
              .value();
      plan.remote = here->lists()
                        .prepare(Side::remote(others[i]->name()),
                                 UniformPages{theirs[i], 0, 0, group_page_bytes, group_pages})
                        .value();
      plan.count = group_pages;
      plan.bytes = list_bytes;
      parts.push_back(std::move(plan));
    }
    return here->requests().make_of_parts(std::move(parts)).value();
  }
  static void make_way(Transfer& group) {
    EXPECT_TRUE(group.post(nullptr).ok());
    EXPECT_TRUE(group.wait(10s).ok()) << group.error().message;
  }
  [[nodiscard]] bool moved(std::size_t peer) const {
    return std::memcmp(near.base + peer * list_bytes, far[peer].base, list_bytes) == 0;
  }
  [[nodiscard]] bool all_moved() const { return moved(0) && moved(1) && moved(2); }

  Logger logger;
  const test::TemporaryFolder folder;
  test::MemorySource::Taken near;
  std::deque<test::MemorySource::Taken> far;
  std::shared_ptr<Engine> here;
  std::vector<std::shared_ptr<Engine>> others;
  const gpu::Stream stream;
  const PostOptions on_stream{.stream = stream.handle()};
  RegionId ours;
  std::vector<RegionId> theirs;
};

TEST_F(RequestGroupTest, a_request_moves_the_pages_of_all_peers_in_the_order_of_a_stream) {
  for (const Op op : {Op::read, Op::write}) {
    const auto group = make(op);
    make_way(*group);
    test::fill_pattern({near.base, peers * list_bytes}, 99);
    ASSERT_TRUE(group->post(&on_stream).ok()) << group->error().message;
    ASSERT_TRUE(stream.wait_idle());
    EXPECT_TRUE(all_moved()) << "the pages have moved before a call to wait";
    EXPECT_TRUE(group->wait(10s).ok()) << group->error().message;
  }
}

TEST_F(RequestGroupTest, a_captured_request_has_all_parts_and_counts_the_replays_that_all_parts_have_ended) {
  const auto group = make();
  make_way(*group);
  std::memset(near.base, 0, peers * list_bytes);
  const GpuGraph graph(stream, [&] { EXPECT_EQ(group->post(&on_stream), Status{}); });
  EXPECT_EQ(group->state(), RequestState::captured);
  EXPECT_FALSE(moved(0)) << "nothing runs before a replay";
  for (std::uint64_t replay = 1; replay <= 3; ++replay) {
    for (std::size_t i = 0; i < peers; ++i) test::fill_pattern({far[i].base, list_bytes}, 10 * replay + i);
    graph.replay();
    EXPECT_TRUE(all_moved());
    EXPECT_EQ(group->check().value(), replay);
  }
  EXPECT_EQ(group->post(nullptr).code, Code::invalid_argument);
  EXPECT_EQ(group->wait(0ns).code, Code::invalid_argument);
  group->cancel();
  EXPECT_EQ(group->state(), RequestState::canceled);
  EXPECT_EQ(group->check().code(), Code::invalid_argument);
  EXPECT_TRUE(here->regions().deregister({&ours, 1}, 10s)) << "no part holds the region after the cancel";
}

TEST_F(RequestGroupTest, a_captured_request_takes_indices_for_each_part) {
  const auto group = make();
  make_way(*group);
  const GpuGraph graph(stream, [&] { EXPECT_EQ(group->post(&on_stream), Status{}); });
  const std::vector<std::uint32_t> near_pages{3}, far_pages{7};
  ASSERT_TRUE(group->set_indices({.local = near_pages, .remote = far_pages, .part = 1}, stream.handle()));
  std::memset(near.base, 0, peers * list_bytes);
  far[1].base[7 * group_page_bytes] = std::byte{99};
  graph.replay();
  EXPECT_EQ(near.base[list_bytes + 3 * group_page_bytes], std::byte{99});
  EXPECT_EQ(near.base[list_bytes + 4 * group_page_bytes], std::byte{0})
      << "only one page of that part is in the indices";
  EXPECT_TRUE(moved(0) && moved(2)) << "the other parts keep their indices";
  const auto none = group->set_indices({.local = near_pages, .part = 3}, stream.handle());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.code(), Code::invalid_argument);
  EXPECT_THAT(none.error().message, HasSubstr("3 parts"));
}

TEST_F(RequestGroupTest, a_captured_request_reads_indices_of_one_part_from_gpu_memory_at_every_replay) {
  const auto table = gpus().take_plain(group_pages * sizeof(std::uint32_t));
  auto* const numbers = reinterpret_cast<std::uint32_t*>(table.base);
  const auto group = make();
  make_way(*group);
  PostOptions options = on_stream;
  options.indices = {.local = {}, .remote = {numbers, group_pages}, .kind = MemoryKind::vram, .part = 2};
  const GpuGraph graph(stream, [&] { EXPECT_EQ(group->post(&options), Status{}); });
  for (std::uint32_t i = 0; i < group_pages; ++i) far[2].base[i * group_page_bytes] = std::byte(i);
  for (std::uint32_t i = 0; i < group_pages; ++i) numbers[i] = group_pages - 1 - i;
  graph.replay();
  for (std::uint32_t i = 0; i < group_pages; ++i)
    EXPECT_EQ(near.base[2 * list_bytes + i * group_page_bytes], std::byte(group_pages - 1 - i));
  EXPECT_TRUE(moved(0) && moved(1));
  options.indices->part = 3;
  EXPECT_EQ(make()->post(&options).code, Code::invalid_argument);
}

TEST_F(RequestGroupTest, a_request_leaves_the_capture_with_all_parts_if_one_part_cannot_be_captured) {
  const auto group = make();
  make_way(*group);
  ASSERT_TRUE(others[1]->regions().deregister({&theirs[1], 1}, 10s));
  {
    const GpuGraph graph(stream, [&] {
      const Status status = group->post(&on_stream);
      EXPECT_TRUE(status.code == Code::not_found || status.code == Code::peer_lost) << code_name(status.code);
    });
    EXPECT_EQ(group->state(), RequestState::failed);
    EXPECT_THAT(group->error().message, HasSubstr("part 1 of 3"));
    EXPECT_THAT(group->error().message, HasSubstr("peer1"));
  }
  EXPECT_TRUE(here->regions().deregister({&ours, 1}, 10s)) << "no part is captured";
}

TEST_F(RequestGroupTest, a_capture_before_the_links_are_ready_is_refused_and_changes_nothing) {
  std::shared_ptr<Transfer> group;
  {
    const HeldProgress first(*others[0]), second(*others[1]), third(*others[2]);  // they accept no link
    group = make();
    const GpuGraph graph(stream, [&] { EXPECT_EQ(group->post(&on_stream).code, Code::would_block); });
    EXPECT_EQ(group->state(), RequestState::prepared);
    for (const PartInfo& part : group->parts()) EXPECT_EQ(part.state, RequestState::prepared);
  }
  make_way(*group);
  const GpuGraph graph(stream, [&] { EXPECT_EQ(group->post(&on_stream), Status{}); });
  graph.replay();
  EXPECT_TRUE(all_moved());
}

TEST_F(RequestGroupTest,
       a_capture_before_the_last_link_is_ready_fails_and_leaves_the_capture_with_all_parts) {
  make_way(*make(Op::read, peers - 1));
  std::shared_ptr<Transfer> group;
  {
    const HeldProgress last(*others.back());
    group = make();
    const GpuGraph graph(stream, [&] { EXPECT_EQ(group->post(&on_stream).code, Code::would_block); });
    EXPECT_EQ(group->state(), RequestState::failed);
    EXPECT_THAT(group->error().message, HasSubstr("part 2 of 3"));
    for (const PartInfo& part : group->parts()) EXPECT_NE(part.state, RequestState::captured);
  }
  make_way(*group);
  const GpuGraph graph(stream, [&] { EXPECT_EQ(group->post(&on_stream), Status{}); });
  graph.replay();
  EXPECT_TRUE(all_moved());
}

TEST_F(RequestGroupTest, a_post_on_a_stream_returns_the_error_of_a_failed_part_at_once) {
  const auto group = make();
  make_way(*group);
  // The region of the last part is gone: that part fails after the others have been queued.
  ASSERT_TRUE(others[2]->regions().deregister({&theirs[2], 1}, 10s));
  std::memset(near.base, 0, peers * list_bytes);
  const Status status = group->post(&on_stream);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(group->wait(10s), status);
  EXPECT_THAT(group->error().message, HasSubstr("part 2 of 3"));
  EXPECT_TRUE(moved(0) && moved(1));
  EXPECT_EQ(group->parts()[0].state, RequestState::done);
  EXPECT_EQ(group->parts()[2].state, RequestState::failed);
}

TEST_F(RequestGroupTest, a_captured_request_is_canceled_with_all_parts_if_one_part_is_canceled) {
  const auto group = make();
  make_way(*group);
  const GpuGraph graph(stream, [&] { EXPECT_EQ(group->post(&on_stream), Status{}); });
  ASSERT_TRUE(here->peers().forget("peer1"));
  const Deadline deadline = Deadline::after(10s);
  while (group->state() != RequestState::canceled && !deadline.expired()) (void)here->progress().poll();
  EXPECT_EQ(group->state(), RequestState::canceled);
  EXPECT_TRUE(here->regions().deregister({&ours, 1}, 10s)) << "no part is captured any more";
}

TEST_F(RequestGroupTest, closing_the_agent_cancels_a_captured_request) {
  const auto group = make();
  make_way(*group);
  {
    const GpuGraph graph(stream, [&] { EXPECT_EQ(group->post(&on_stream), Status{}); });
  }
  here->close();
  EXPECT_EQ(group->state(), RequestState::canceled);
  EXPECT_EQ(group->check().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace::engine
