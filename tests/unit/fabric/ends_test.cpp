// SPDX-License-Identifier: Apache-2.0
// How posts end: once, named, with quiet memory; and how a fabric ends beside them.
#include "fabric/core.hpp"
#include "unit/fabric/two_fabrics.hpp"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>

namespace headrace::test_fabric {
namespace {

/// A listening socket that nobody accepts on: a peer that never answers.
FabricDescriptor silent_target() {
  Fabric gone = open_at({"127.0.0.1"});
  Block block(gone, std::vector<std::uint8_t>(4096), FabricAccess::writable);
  return block.memory.descriptor();  // the port is closed with the fabric
}

TEST(FabricEnds, callbacks_eventfd_and_wait_tell_the_same_end) {
  TwoFabrics two(4096);
  const auto work = value_of(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096));
  std::promise<Status> told;
  work.on_done([&](Status status) { told.set_value(status); });
  EXPECT_TRUE(told.get_future().get().ok());
  EXPECT_TRUE(work.wait(long_enough).ok());
  pollfd waited{value_of(work.event_fd()), POLLIN, 0};
  EXPECT_EQ(::poll(&waited, 1, 0), 1);
  EXPECT_EQ(work.error().code, Code::ok);
  EXPECT_EQ(work.bytes(), 4096U);
  std::promise<void> late;
  work.on_done([&](Status) { late.set_value(); });
  late.get_future().get();
}

TEST(FabricEnds, a_peer_that_is_gone_is_named) {
  TwoFabrics two(4096);
  const auto gone = silent_target();
  const auto work = value_of(two.here.write(two.here_block->memory, 0, gone, 0, 4096));
  EXPECT_EQ(work.wait(long_enough).code, Code::peer_lost);
  EXPECT_EQ(work.state(), RequestState::failed);
  EXPECT_NE(work.error().message.find("write of 4096 bytes to tcp:127.0.0.1:"), std::string::npos)
      << work.error().message;
  EXPECT_EQ(two.here.counters().failed, 1U);
  expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096));
}

TEST(FabricEnds, a_peer_that_comes_back_is_reached_by_a_new_link) {
  TwoFabrics two(4096);
  for (int i = 0; i < 3; ++i) {
    Fabric other = open_at({"127.0.0.1"});
    Block block(other, std::vector<std::uint8_t>(4096), FabricAccess::writable);
    expect_done(two.here.write(two.here_block->memory, 0, block.memory.descriptor(), 0, 4096));
    EXPECT_EQ(block.bytes, two.here_block->bytes);
  }
}

TEST(FabricEnds, memory_that_its_owner_took_back_is_refused_by_name) {
  TwoFabrics two(4096);
  const auto target = two.target();
  expect_done(two.here.write(two.here_block->memory, 0, target, 0, 16));
  ASSERT_TRUE(two.there.deregister(two.there_block->memory));
  const auto before = two.there_block->bytes;
  const auto work = value_of(two.here.write(two.here_block->memory, 0, target, 0, 4096));
  EXPECT_EQ(work.wait(long_enough).code, Code::not_found);
  EXPECT_EQ(two.there_block->bytes, before);
}

TEST(FabricEnds, deregister_ends_the_posts_that_use_the_memory) {
  TwoFabrics two(4 << 20);
  std::vector<FabricWork> works;
  for (int i = 0; i < 20; ++i)
    works.push_back(value_of(two.here.write(two.here_block->memory, 0, two.target(), 0, 4 << 20)));
  ASSERT_TRUE(two.here.deregister(two.here_block->memory));
  for (const auto& work : works) {
    EXPECT_NE(work.state(), RequestState::posted);
    EXPECT_NE(work.state(), RequestState::canceling);
    if (work.state() == RequestState::canceled) {
      EXPECT_NE(work.error().message.find("its memory was deregistered"), std::string::npos);
    }
  }
  EXPECT_EQ(works.back().state(), RequestState::canceled);
}

TEST(FabricEnds, a_post_ends_at_its_time_and_a_canceled_one_soon) {
  TwoFabrics two(4 << 20);
  FabricPost post;
  post.timeout = 0ns;
  const auto late = value_of(two.here.write(two.here_block->memory, 0, two.target(), 0, 4 << 20, post));
  const auto canceled = value_of(two.here.write(two.here_block->memory, 0, two.target(), 0, 4 << 20));
  canceled.cancel();
  EXPECT_EQ(late.wait(long_enough).code, Code::timed_out);
  EXPECT_NE(late.error().message.find("write of 4194304 bytes"), std::string::npos) << late.error().message;
  const Status status = canceled.wait(long_enough);
  EXPECT_TRUE(status.ok() || status.code == Code::canceled) << code_name(status.code);
  canceled.cancel();  // nothing
  expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 4 << 20));
}

TEST(FabricEnds, a_peer_that_was_forgotten_is_reached_again) {
  TwoFabrics two(4 << 20);
  const auto peer = value_of(two.here.connect(two.there.address()));
  std::vector<FabricWork> works;
  for (int i = 0; i < 10; ++i)
    works.push_back(value_of(two.here.write(two.here_block->memory, 0, two.target(), 0, 4 << 20)));
  ASSERT_TRUE(two.here.forget(peer));
  for (const auto& work : works) {
    const Status status = work.wait(long_enough);
    EXPECT_TRUE(status.ok() || status.code == Code::canceled) << work.error().message;
  }
  EXPECT_EQ(works.back().state(), RequestState::canceled);
  expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 4 << 20));
  EXPECT_EQ(two.here_block->bytes, two.there_block->bytes);
}

TEST(FabricEnds, a_callback_that_throws_ends_nothing) {
  TwoFabrics two(4096);
  std::promise<std::string> told;
  two.here.on_error([&](const Error& error) { told.set_value(error.message); });
  const auto work = value_of(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096));
  work.on_done([](Status) { throw std::runtime_error("of the test"); });
  EXPECT_NE(told.get_future().get().find("of the test"), std::string::npos);
  two.here.on_error([](const Error&) { throw 1; });
  const auto other = value_of(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096));
  other.on_done([](Status) { throw 2; });
  std::promise<void> last;
  const auto third = value_of(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096));
  third.on_done([&](Status) { last.set_value(); });
  last.get_future().get();
  EXPECT_EQ(two.here.counters().callbacks_failed, 3U);
}

TEST(FabricEnds, callbacks_may_post_register_and_close) {
  auto two = std::make_unique<TwoFabrics>(4096);
  std::promise<void> posted, closed;
  const auto work = value_of(two->here.write(two->here_block->memory, 0, two->target(), 0, 4096));
  work.on_done([&](Status) {
    const auto second = value_of(two->here.write(two->here_block->memory, 0, two->target(), 0, 16));
    EXPECT_TRUE(second.wait(long_enough).ok()) << "a callback may wait";
    std::vector<std::uint8_t> bytes(16);
    const auto memory = value_of(two->here.register_memory({.address = bytes.data(), .length_bytes = 16}));
    EXPECT_TRUE(two->here.deregister(memory));
    posted.set_value();
  });
  posted.get_future().get();
  const auto third = value_of(two->here.write(two->here_block->memory, 0, two->target(), 0, 4096));
  third.on_done([&](Status) {
    two->here.close();
    closed.set_value();
  });
  closed.get_future().get();
  expect_refused(two->here.write(two->here_block->memory, 0, two->target(), 0, 1), Code::invalid_argument,
                 "closed");
}

TEST(FabricEnds, a_callback_may_destroy_the_fabric) {
  auto two = std::make_unique<TwoFabrics>(4096);
  auto fabric = std::make_shared<std::optional<Fabric>>(std::move(two->here));
  std::promise<void> destroyed;
  const auto work = value_of((*fabric)->write(two->here_block->memory, 0, two->target(), 0, 4096));
  work.on_done([fabric, &destroyed](Status) {
    fabric->reset();
    destroyed.set_value();
  });
  destroyed.get_future().get();
  EXPECT_TRUE(work.wait(long_enough).ok());
}

TEST(FabricEnds, close_tells_every_end_and_later_calls_are_refused) {
  TwoFabrics two(4 << 20);
  auto expectation = value_of(two.here.expect({1, 0}, 1));
  std::atomic<int> ends = 0;
  std::vector<FabricWork> works;
  for (int i = 0; i < 20; ++i) {
    works.push_back(value_of(two.here.write(two.here_block->memory, 0, two.target(), 0, 4 << 20)));
    works.back().on_done([&](Status) { ++ends; });
  }
  two.here.close();
  EXPECT_EQ(ends.load(), 20);
  EXPECT_EQ(works.back().wait(0ns).code, Code::canceled);
  EXPECT_EQ(expectation.wait(long_enough).code, Code::canceled);
  expect_refused(two.here.expect({2, 0}, 1), Code::invalid_argument, "closed");
  expect_refused(two.here.register_memory({.address = &two, .length_bytes = 1}), Code::invalid_argument,
                 "closed");
  expect_refused(two.here.connect(two.there.address()), Code::invalid_argument, "closed");
  works.back().cancel();
  bool called = false;
  works.back().on_done([&](Status) { called = true; });
  EXPECT_TRUE(called) << "without a thread, on the one that asks";
  EXPECT_EQ(expectation.remove(), 0U);
  two.here.close();
}

TEST(FabricEnds, what_was_done_before_the_close_is_counted_at_the_peer) {
  TwoFabrics two(4096);
  auto arrivals = value_of(two.there.expect({1, 0}, 50));
  FabricPost post;
  post.immediate = {1, 0};
  const auto peer = value_of(two.here.connect(two.there.address()));
  for (int i = 0; i < 25; ++i) {
    expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096, post));
    expect_done(two.here.post_immediate(peer, {1, 0}));
  }
  two.here.close();
  EXPECT_TRUE(arrivals.wait(long_enough).ok());
}

TEST(FabricEnds, a_fabric_is_closed_from_any_thread_at_any_moment) {
  for (int round = 0; round < 8; ++round) {
    auto two = std::make_unique<TwoFabrics>(64 << 10, static_cast<std::uint64_t>(round));
    std::atomic<bool> stop = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&, i, posted = 0]() mutable {
        while (!stop) {
          const auto work = two->here.write(two->here_block->memory, 0, two->target(), 0, 64 << 10);
          if (!work) {
            if (work.code() == Code::would_block) continue;
            EXPECT_TRUE(work.code() == Code::invalid_argument || work.code() == Code::canceled);
            return;
          }
          work->on_done([](Status) {});
          if (i == 0 && ++posted % 3 == 0) static_cast<void>(work->wait(long_enough));
        }
      });
    std::this_thread::sleep_for(std::chrono::milliseconds(round * 3));
    (round % 2 == 0 ? two->here : two->there).close();
    if (round % 2 == 1) stop = true;
    for (auto& thread : threads) thread.join();
  }
}

TEST(FabricEnds, memories_and_peers_of_the_past_leave_nothing_behind) {
  Fabric here = open_at({"127.0.0.1"}), there = open_at({"127.0.0.1"});
  Block source(here, std::vector<std::uint8_t>(64), FabricAccess::local);
  auto& worker = fabric::Core::of(here)->worker(0);
  std::size_t most = 0;
  for (int i = 0; i < 400; ++i) {
    Block target(there, std::vector<std::uint8_t>(64), FabricAccess::writable);
    expect_done(here.write(source.memory, 0, target.memory.descriptor(), 0, 64));
    ASSERT_TRUE(there.deregister(target.memory));
    if (i % 20 == 0)
      ASSERT_TRUE(worker.run([&](fabric::Carrier& carrier) { most = std::max(most, carrier.held()); }));
  }
  EXPECT_LE(most, 300U);
  there.close();
  for (std::size_t held = 1; held > 0;)  // until the link is lost
    ASSERT_TRUE(worker.run([&](fabric::Carrier& carrier) { held = carrier.held(); }));
}

TEST(FabricEnds, peers_of_this_host_are_reached_unasked) {
  Fabric here = value_of(Fabric::open()), there = value_of(Fabric::open());
  const auto nics = here.groups().at(0).nics;
  const auto near = std::ranges::find(nics, "this host", &FabricNic::name);
  ASSERT_NE(near, nics.end());
  ASSERT_EQ(near->provider, "shm") << near->why;
  EXPECT_TRUE(near->up);
  std::mt19937_64 random(7);
  Block source(here, random_bytes(300'000, random), FabricAccess::local);
  Block target(there, std::vector<std::uint8_t>(300'000), FabricAccess::writable);
  expect_done(here.write(source.memory, 0, target.memory.descriptor(), 0, 10));  // all are connected
  const auto counter = [&] { return here.telemetry().counters.at("fabric.this host.written_bytes"); };
  const std::uint64_t before = counter();
  expect_done(here.write(source.memory, 0, target.memory.descriptor(), 0, 300'000));
  EXPECT_EQ(source.bytes, target.bytes);
  EXPECT_EQ(counter() - before, 300'000U);
}

TEST(FabricEnds, a_worker_without_work_sleeps) {
  TwoFabrics two(4096);
  expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096));
  auto& worker = fabric::Core::of(two.here)->worker(0);
  std::this_thread::sleep_for(100ms);  // what follows the write is over
  const std::uint64_t before = worker.sleeps();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(worker.sleeps() - before, 40U);
}

TEST(FabricEnds, a_forked_child_is_refused_and_leaves_the_parent_alone) {
  TwoFabrics two(4096);
  const auto work = value_of(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096));
  ASSERT_TRUE(work.wait(long_enough).ok());
  auto expectation = value_of(two.here.expect({1, 0}, 1));
  const pid_t child = ::fork();
  if (child == 0) {
    bool right = work.wait(0ns).code == Code::invalid_argument;
    right = right && expectation.wait(0ns).code == Code::invalid_argument;
    right = right &&
            two.here.write(two.here_block->memory, 0, two.target(), 0, 1).code() == Code::invalid_argument;
    right = right && two.here.connect(two.there.address()).code() == Code::invalid_argument;
    right = right && two.here.expect({2, 0}, 1).code() == Code::invalid_argument;
    two.here.close();
    { const Fabric ending = std::move(two.here); }
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096));
}

TEST(FabricEnds, host_buffers_are_taken_given_back_and_written) {
  TwoFabrics two(4096);
  auto pool = value_of(two.here.host_buffers(2, 100));
  EXPECT_EQ(pool.bytes_each(), 100U);
  auto first = value_of(pool.take());
  {
    const auto second = value_of(pool.take());
    EXPECT_EQ(pool.take().code(), Code::would_block);
    EXPECT_EQ(pool.free(), 0U);
  }
  EXPECT_EQ(pool.free(), 1U);
  std::ranges::fill(first.bytes(), std::byte{0x5A});
  expect_done(two.here.write(first.memory(), first.offset_bytes(), two.target(), 10, 100));
  EXPECT_EQ(
      std::vector<std::uint8_t>(two.there_block->bytes.begin() + 10, two.there_block->bytes.begin() + 110),
      std::vector<std::uint8_t>(100, 0x5A));
  expect_refused(two.here.host_buffers(0, 100), Code::invalid_argument, "at least one buffer");
  expect_refused(two.here.host_buffers(SIZE_MAX, 1), Code::exhausted, "buffers");
  expect_refused(two.here.host_buffers(1, UINT64_MAX), Code::exhausted, "buffers");
  pool = {};
  EXPECT_EQ(first.bytes()[99], std::byte{0x5A}) << "the memory lives with its buffers";
}

}  // namespace
}  // namespace headrace::test_fabric
