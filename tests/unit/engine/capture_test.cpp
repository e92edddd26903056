// SPDX-License-Identifier: Apache-2.0
// Captured requests: the calls that one accepts, the memory that it holds, and the errors that `check`
// reports. Two agents of this process with the backend cuda_ipc over fake GPUs.
#include "engine/engine.hpp"
#include "gpu/stream.hpp"
#include "support/fake_gpus.hpp"
#include "support/fake_graph.hpp"
#include "unit/engine/linked_backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;
using test::GpuGraph;
using testing::HasSubstr;

constexpr std::uint32_t pages = 50, page_bytes = 300;

class CaptureTest : public testing::Test {
 protected:
  CaptureTest()
      : here(open("here")),
        there(open("there")),
        stream(gpu::Stream::make(
                   gpu::Device::open(test::FakeGpus::of_this_process().driver().load().value(), 0).value())
                   .value()) {
    ours = registered(*here, near.base, 1);
    theirs = registered(*there, far.base, 2);
    EXPECT_TRUE(here->peers().import(there->regions().exported({}).value()).ok());
    EXPECT_TRUE(there->peers().import(here->regions().exported({}).value()).ok());
    request = make();
  }
  /// A captured request holds its engine until the engine closes, so both engines close here, as agents do.
  ~CaptureTest() override {
    here->close();
    there->close();
  }

  std::shared_ptr<Engine> open(const std::string& name) { return open_on_gpus(name, folder, logger); }
  /// Other bytes in every page and for every seed, so that a page in a wrong place shows.
  static void fill(std::byte* base, std::uint64_t seed) {
    test::fill_pattern({base, std::size_t{pages} * page_bytes}, seed);
  }
  static RegionId registered(Engine& engine, std::byte* base, std::uint64_t seed) {
    fill(base, seed);
    const MemoryRange range{.address = base,
                            .length_bytes = std::size_t{pages} * page_bytes,
                            .kind = MemoryKind::vram,
                            .device = 0};
    return engine.regions().add({&range, 1}, {}, {}).value().front().id;
  }
  std::shared_ptr<RequestCore> make() { return make("there", theirs); }
  std::shared_ptr<RequestCore> make(const std::string& peer, RegionId region) {
    RequestPlan plan;
    plan.op = Op::read;
    plan.local = here->lists().prepare(Side::local(), UniformPages{ours, 0, 0, page_bytes, pages}).value();
    plan.remote =
        here->lists().prepare(Side::remote(peer), UniformPages{region, 0, 0, page_bytes, pages}).value();
    plan.count = pages;
    plan.bytes = std::uint64_t{pages} * page_bytes;
    return here->requests().make(std::move(plan)).value();
  }
  /// Posts once, so that the link is ready and the peer's memory is mapped; then captures a post of the
  /// request.
  std::unique_ptr<GpuGraph> captured() { return captured(on_stream); }
  std::unique_ptr<GpuGraph> captured(const PostOptions& options) {
    EXPECT_TRUE(request->post(nullptr).ok());
    EXPECT_TRUE(request->wait(10s).ok()) << request->error().message;
    auto graph = std::make_unique<GpuGraph>(
        stream, [&] { EXPECT_EQ(request->post(&options), Status{}) << request->error().message; });
    EXPECT_EQ(request->state(), RequestState::captured);
    return graph;
  }
  [[nodiscard]] bool moved() const {
    return std::memcmp(near.base, far.base, std::size_t{pages} * page_bytes) == 0;
  }
  [[nodiscard]] Result<void> change(std::vector<std::uint32_t> local,
                                    std::vector<std::uint32_t> remote) const {
    return request->set_indices({.local = local, .remote = remote}, stream.handle());
  }
  /// Runs progress of both agents until the condition holds.
  [[nodiscard]] bool until(const std::function<bool()>& done) const {
    const Deadline deadline = Deadline::after(10s);
    while (!done() && !deadline.expired()) {
      (void)here->progress().poll();
      (void)there->progress().poll();
    }
    return done();
  }

  Logger logger;
  const test::TemporaryFolder folder;
  test::MemorySource::Taken near =
                                test::FakeGpus::of_this_process().take_plain(std::size_t{pages} * page_bytes),
                            far =
                                test::FakeGpus::of_this_process().take_plain(std::size_t{pages} * page_bytes);
  std::shared_ptr<Engine> here, there;
  const gpu::Stream stream;
  const PostOptions on_stream{.stream = stream.handle()};
  const PostOptions counted{.immediate = Immediate{.value = 5, .scope = 2}, .stream = stream.handle()};
  RegionId ours, theirs;
  std::shared_ptr<RequestCore> request;
};

TEST_F(CaptureTest, a_captured_request_moves_pages_at_each_replay_and_refuses_post_and_wait) {
  const auto graph = captured();
  fill(far.base, 77);
  EXPECT_FALSE(moved()) << "nothing runs before a replay";
  for (std::uint64_t replay = 1; replay <= 3; ++replay) {
    fill(far.base, 100 + replay);
    graph->replay();
    EXPECT_TRUE(moved());
    EXPECT_EQ(request->check().value(), replay);
  }
  EXPECT_EQ(here->counters().captured.value(), 1U);
  EXPECT_EQ(here->counters().replayed.value(), 3U);
  EXPECT_EQ(request->post(nullptr).code, Code::invalid_argument);
  EXPECT_EQ(request->post(&on_stream).code, Code::invalid_argument);
  EXPECT_EQ(request->wait(0ns).code, Code::invalid_argument);
  EXPECT_EQ(request->poll(), RequestState::captured);
}

TEST_F(CaptureTest, a_captured_request_that_was_canceled_may_be_posted_and_captured_again) {
  {
    const auto graph = captured();
    request->cancel();
    EXPECT_EQ(request->state(), RequestState::canceled);
    EXPECT_EQ(request->wait(0ns).code, Code::canceled);
    EXPECT_EQ(request->check().code(), Code::invalid_argument);
  }
  const auto graph = captured();
  graph->replay();
  EXPECT_EQ(request->check().value(), 1U) << "the count begins anew at each capture";
}

TEST_F(CaptureTest, a_capture_with_a_notification_is_refused_with_a_sentence) {
  EXPECT_TRUE(request->post(nullptr).ok());
  EXPECT_TRUE(request->wait(10s).ok());
  PostOptions options = on_stream;
  options.notification = "done";
  const GpuGraph graph(stream, [&] { EXPECT_EQ(request->post(&options).code, Code::not_supported); });
  EXPECT_EQ(request->state(), RequestState::failed);
  EXPECT_THAT(request->error().message, HasSubstr("a graph carries no notification"));
}

TEST_F(CaptureTest, the_peer_counts_each_replay_of_a_post_with_an_immediate_while_nobody_polls) {
  const auto count = there->arrivals().open(*counted.immediate).value();
  const auto graph = captured(counted);
  for (std::uint64_t replay = 1; replay <= 20; ++replay) {
    fill(far.base, 100 + replay);
    graph->launch();
    ASSERT_TRUE(there->arrivals().wait(*count, replay, 10s).ok()) << replay;
    EXPECT_TRUE(moved());
    EXPECT_EQ(count->value(), replay);
  }
}

TEST_F(CaptureTest, replays_before_a_cancel_are_counted_and_posts_after_it_as_they_say) {
  const auto count = there->arrivals().open(*counted.immediate).value();
  for (std::uint64_t round = 1; round <= 10; ++round) {
    const auto graph = captured(counted);
    graph->replay();
    graph->replay();
    request->cancel();
    ASSERT_TRUE(request->post(&counted).ok());
    ASSERT_TRUE(request->wait(10s).ok());
    ASSERT_TRUE(there->arrivals().wait(*count, 3 * round, 10s).ok());
    EXPECT_EQ(count->value(), 3 * round);
  }
}

TEST_F(CaptureTest, replays_before_the_agent_closes_are_counted) {
  const auto count = there->arrivals().open(*counted.immediate).value();
  {
    const auto graph = captured(counted);
    for (int replay = 0; replay < 3; ++replay) graph->replay();
  }
  here->close();
  EXPECT_TRUE(there->arrivals().wait(*count, 3, 10s).ok());
  EXPECT_EQ(count->value(), 3U);
}

TEST_F(CaptureTest, a_capture_before_the_link_is_ready_would_block_and_changes_nothing) {
  const auto other = open("other");
  const RegionId region = registered(*other, far.base, 3);
  {
    const HeldProgress silent(*other);  // it accepts no link
    ASSERT_TRUE(here->peers().import(other->regions().exported({}).value()).ok());
    request = make("other", region);
    const GpuGraph graph(stream, [&] { EXPECT_EQ(request->post(&on_stream).code, Code::would_block); });
    EXPECT_EQ(request->state(), RequestState::prepared);
    EXPECT_EQ(here->counters().captured.value(), 0U);
  }
  const auto later = captured();
  later->replay();
  EXPECT_TRUE(moved());
  other->close();
}

TEST_F(CaptureTest, indices_from_the_host_are_checked_against_the_lists) {
  EXPECT_EQ(change({0}, {0}).code(), Code::invalid_argument) << "the request is not captured";
  const auto graph = captured();
  EXPECT_EQ(change({}, {}).code(), Code::invalid_argument);
  EXPECT_EQ(change({0, 1}, {2}).code(), Code::invalid_argument);
  EXPECT_EQ(change(std::vector<std::uint32_t>(pages + 1), {}).code(), Code::invalid_argument);
  const auto beyond = change({}, {0, 1, pages});
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.code(), Code::invalid_argument);
  EXPECT_EQ(beyond.error().page, 2U);
  EXPECT_THAT(beyond.error().message, HasSubstr("remote page number 2 is 50: the list has 50 pages"));
  std::memset(near.base, 0, std::size_t{pages} * page_bytes);
  far.base[7 * page_bytes] = std::byte{99};
  ASSERT_TRUE(change({3}, {7}));
  graph->replay();
  EXPECT_EQ(near.base[3 * page_bytes], std::byte{99});
  EXPECT_EQ(near.base[4 * page_bytes], std::byte{0}) << "only one page is in the indices";
}

TEST_F(CaptureTest, a_captured_post_reads_its_indices_from_gpu_memory_at_every_replay) {
  const auto table = test::FakeGpus::of_this_process().take_plain(pages * sizeof(std::uint32_t));
  auto* const numbers = reinterpret_cast<std::uint32_t*>(table.base);
  PostOptions options = on_stream;
  options.indices = {.local = {}, .remote = {numbers, pages}, .kind = MemoryKind::vram};
  EXPECT_TRUE(request->post(nullptr).ok());
  EXPECT_TRUE(request->wait(10s).ok());
  const GpuGraph graph(stream, [&] { EXPECT_EQ(request->post(&options), Status{}); });
  for (std::uint32_t i = 0; i < pages; ++i) far.base[i * page_bytes] = std::byte(i);
  for (const std::uint32_t shift : {1U, 20U, 49U}) {
    for (std::uint32_t i = 0; i < pages; ++i) numbers[i] = (i + shift) % pages;
    graph.replay();
    for (std::uint32_t i = 0; i < pages; ++i)
      EXPECT_EQ(near.base[i * page_bytes], std::byte((i + shift) % pages));
  }
  numbers[7] = 12345;
  graph.replay();
  const auto told = request->check();
  ASSERT_FALSE(told);
  EXPECT_EQ(told.code(), Code::invalid_argument);
  EXPECT_EQ(told.error().page, 7U);
  EXPECT_EQ(request->check().value(), 4U);
}

TEST_F(CaptureTest, indices_with_a_post_that_is_not_captured_are_refused) {
  const std::vector<std::uint32_t> numbers{1, 2};
  PostOptions options;
  options.indices = {.local = numbers};
  EXPECT_EQ(request->post(&options).code, Code::invalid_argument) << "no stream";
  EXPECT_EQ(request->state(), RequestState::prepared);
  options.stream = stream.handle();
  EXPECT_EQ(request->post(&options).code, Code::invalid_argument) << "the stream is not being captured";
  EXPECT_EQ(request->state(), RequestState::failed);
  EXPECT_THAT(request->error().message, HasSubstr("where its stream is being captured"));
  EXPECT_TRUE(request->post(nullptr).ok());
  EXPECT_TRUE(request->wait(10s).ok());
}

TEST_F(CaptureTest, forgetting_the_peer_cancels_a_captured_request) {
  const auto graph = captured();
  ASSERT_TRUE(here->peers().forget("there"));
  EXPECT_EQ(request->state(), RequestState::canceled);
  EXPECT_TRUE(here->regions().deregister({&ours, 1}, 0ns));
}

TEST_F(CaptureTest, the_regions_of_a_captured_request_cannot_be_deregistered_before_it_is_canceled) {
  const auto graph = captured();
  const auto refused = here->regions().deregister({&ours, 1}, 0ns);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), Code::would_block);
  EXPECT_THAT(refused.error().message, HasSubstr("lies in a graph"));
  EXPECT_TRUE(request->check()) << "the refusal changes nothing";
  request->cancel();  // as the destructor of the caller's last handle does
  EXPECT_TRUE(here->regions().deregister({&ours, 1}, 10s));
}

TEST_F(CaptureTest, a_deregistration_by_the_owner_waits_until_the_captured_request_is_canceled) {
  const auto graph = captured();
  const auto timed_out = there->regions().deregister({&theirs, 1}, 200ms);
  ASSERT_FALSE(timed_out);
  EXPECT_EQ(timed_out.code(), Code::timed_out);
  ASSERT_TRUE(until([&] { return request->check().code() == Code::not_found; }));
  EXPECT_THAT(request->check().error().message, HasSubstr("registered no longer"));
  graph->replay();  // reads memory that is still mapped
  request->cancel();
  EXPECT_TRUE(there->regions().deregister({&theirs, 1}, 10s));
}

TEST_F(CaptureTest, check_reports_the_loss_of_the_peer_and_replays_stay_harmless) {
  const auto graph = captured();
  there->close();
  ASSERT_TRUE(until([&] { return request->check().code() == Code::peer_lost; }));
  graph->replay();
  EXPECT_EQ(request->check().code(), Code::peer_lost);
  request->cancel();
  EXPECT_EQ(request->state(), RequestState::canceled);
}

TEST_F(CaptureTest, closing_the_agent_cancels_a_captured_request) {
  auto graph = captured();
  graph.reset();
  here->close();
  EXPECT_EQ(request->state(), RequestState::canceled);
  EXPECT_EQ(request->check().code(), Code::invalid_argument);
}

TEST_F(CaptureTest, a_post_on_a_stream_that_is_not_being_captured_moves_the_pages) {
  EXPECT_TRUE(request->post(nullptr).ok());
  EXPECT_TRUE(request->wait(10s).ok());
  fill(far.base, 55);
  ASSERT_TRUE(request->post(&on_stream).ok());
  EXPECT_TRUE(request->wait(10s).ok());
  EXPECT_TRUE(moved());
}

}  // namespace
}  // namespace headrace::engine
