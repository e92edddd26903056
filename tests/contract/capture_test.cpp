// SPDX-License-Identifier: Apache-2.0
// Requests in CUDA graphs, by the entries `capture`, `set_indices`, `check` and `end_capture`: a replay moves
// the pages whose numbers hold then, without the host, and what went wrong is told when it is asked for.
#include "contract/fake_gpu_fixture.hpp"

#include "gpu/stream.hpp"
#include "support/fake_graph.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace headrace::contract {
namespace {

std::vector<BackendCase> capture_cases(std::uint32_t abilities) {
  std::vector<BackendCase> cases = cases_with(HEADRACE_CAPTURE | abilities);
  std::erase_if(cases, [](const BackendCase& which) { return !which.vram; });
  return cases;
}

constexpr std::uint64_t page_bytes = 513;
constexpr std::uint32_t pages = 40;

using Numbers = std::vector<std::uint32_t>;

/// 0, 1, 2, ...
Numbers in_order(std::uint32_t count = pages) {
  Numbers numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0U);
  return numbers;
}

/// How an entry answered.
struct Answer {
  Code code = Code::ok;
  std::string text;
  std::uint64_t page = HEADRACE_NO_PAGE;
  std::uint64_t replays = 0;
  bool captured = false;
};

/// A request between a list of pages here and one of another region, each of `pages` pages.
struct Lists {
  Memory mine{Memory::Kind::plain, page_bytes* pages, 1};
  Region local;
  Remote remote;
  Request request;
  Lists(Instance& a, const Link* link, Remote far, headrace_op_v1 op)
      : local(a, mine),
        remote(std::move(far)),
        request(a, op, link, uniform_side(local.handle(), 0, page_bytes, page_bytes),
                uniform_side(remote.handle(), 0, page_bytes, page_bytes), pages) {}
};

template <class Fixture>
class CapturesOf : public OverFakeGpus<Fixture> {
 protected:
  CapturesOf() : stream(gpu::Stream::make(gpu::Device::open(driver().load().value(), 0).value()).value()) {}

  Answer capture(Instance& a, const Request& request, const headrace_indices_v1* indices = nullptr,
                 bool with_message = false) {
    headrace_capture_v1 args{};
    args.struct_size = sizeof args;
    args.stream = stream.handle();
    args.local_pages = args.remote_pages = pages;
    args.indices = indices;
    args.has_message = with_message ? 1 : 0;
    args.has_immediate = immediate ? 1 : 0;
    args.immediate = immediate ? immediate->value : 0;
    args.scope = immediate ? immediate->scope : 0;
    ErrorText error;
    const std::int32_t code = this->table->capture(a.handle(), request.handle(), &args, error.out());
    return {static_cast<Code>(code), error.str(), args.page, 0, args.captured != 0};
  }
  /// A graph that holds the request and nothing else.
  std::unique_ptr<GpuGraph> captured(Instance& a, const Request& request,
                                     const headrace_indices_v1* indices = nullptr) {
    return std::make_unique<GpuGraph>(stream, [&] {
      const Answer answer = capture(a, request, indices);
      EXPECT_EQ(answer.code, Code::ok) << answer.text;
      EXPECT_TRUE(answer.captured);
    });
  }
  headrace_indices_v1 indices(const std::uint32_t* local, const std::uint32_t* remote, std::uint64_t count,
                              headrace_memory_kind_v1 kind = HEADRACE_DRAM) {
    headrace_indices_v1 args{};
    args.struct_size = sizeof args;
    args.local = local;
    args.remote = remote;
    args.count = count;
    args.stream = stream.handle();
    args.kind = kind;
    return args;
  }
  Answer set_indices(Instance& a, const Request& request, const headrace_indices_v1& args) {
    ErrorText error;
    const std::int32_t code = this->table->set_indices(a.handle(), request.handle(), &args, error.out());
    return {static_cast<Code>(code), error.str()};
  }
  /// With numbers of the host's memory, which are gone once the entry has returned.
  Answer renumber(Instance& a, const Request& request, Numbers local, Numbers remote) {
    const std::uint64_t count = std::max(local.size(), remote.size());
    Answer answer = set_indices(
        a, request,
        indices(local.empty() ? nullptr : local.data(), remote.empty() ? nullptr : remote.data(), count));
    std::ranges::fill(local, 12'345U), std::ranges::fill(remote, 12'345U);
    return answer;
  }
  Answer check(Instance& a, const Request& request) {
    headrace_check_v1 args{};
    args.struct_size = sizeof args;
    ErrorText error;
    const std::int32_t code = this->table->check(a.handle(), request.handle(), &args, error.out());
    return {static_cast<Code>(code), error.str(), args.page, args.replays};
  }
  void end_capture(Instance& a, const Request& request) {
    this->table->end_capture(a.handle(), request.handle());
  }

  const gpu::Stream stream;
  std::optional<plugin::Immediate> immediate;  ///< of all posts that are captured
};

// ------------------------------------------------------------------------------------------ to a peer

class Captures : public CapturesOf<Contract> {
 protected:
  /// Two agents, a list of pages at each, and a request of `a` whose way to the peer's memory is made.
  struct Ground {
    Pair pair;
    Memory theirs{Memory::Kind::plain, page_bytes* pages, 2};
    Region owner;
    Lists lists;
    Ground(Captures& test, headrace_op_v1 op)
        : pair(test.open_pair()),
          owner(*pair.b, theirs),
          lists(*pair.a, &pair.ab, Remote(pair.ab, owner.facts()), op) {
      const PostEnd end = request().run();
      EXPECT_TRUE(end.status.ok()) << end.text;
      refill();
    }
    [[nodiscard]] Instance& a() const { return *pair.a; }
    [[nodiscard]] Request& request() { return lists.request; }
    [[nodiscard]] bool reads() { return request().args().op == HEADRACE_READ; }
    [[nodiscard]] std::span<std::byte> source() { return reads() ? theirs.bytes() : lists.mine.bytes(); }
    [[nodiscard]] std::span<std::byte> target() { return reads() ? lists.mine.bytes() : theirs.bytes(); }
    /// Other bytes on both sides, no two pages alike; what the target holds then.
    void refill() {
      fill_pattern(source(), seed++);
      fill_pattern(target(), seed++);
      expected.assign(target().begin(), target().end());
    }
    /// The reference of a replay that moves page local[i] from or to page remote[i].
    void move(const Numbers& local, const Numbers& remote) {
      for (std::size_t i = 0; i < local.size(); ++i) {
        const std::uint32_t from = reads() ? remote[i] : local[i], to = reads() ? local[i] : remote[i];
        std::memcpy(expected.data() + to * page_bytes, source().data() + from * page_bytes, page_bytes);
      }
    }
    [[nodiscard]] bool as_expected() { return same_bytes(target(), expected); }

    std::uint64_t seed = 100;
    Bytes expected;
  };
};
INSTANTIATE_TEST_SUITE_P(backend, Captures, testing::ValuesIn(capture_cases(HEADRACE_REMOTE)), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Captures);

TEST_P(Captures, on_a_stream_that_is_not_captured_do_nothing_and_leave_the_post_to_the_host) {
  Ground ground(*this, HEADRACE_READ);
  const Answer answer = capture(ground.a(), ground.request());
  EXPECT_EQ(answer.code, Code::ok) << answer.text;
  EXPECT_FALSE(answer.captured);
  ASSERT_TRUE(stream.wait_idle());
  EXPECT_TRUE(ground.as_expected()) << "something has moved";
  ASSERT_TRUE(ground.request().run().status.ok());
  ground.move(in_order(), in_order());
  EXPECT_TRUE(ground.as_expected());
}

TEST_P(Captures, move_all_pages_at_every_replay_and_count_the_replays) {
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    Ground ground(*this, op);
    const auto graph = captured(ground.a(), ground.request());
    ASSERT_TRUE(stream.wait_idle());
    EXPECT_TRUE(ground.as_expected()) << "nothing may move before a replay";
    for (std::uint64_t replay = 1; replay <= 4; ++replay) {
      ground.refill();
      ground.move(in_order(), in_order());
      ground.request().cancel();  // no post is in flight
      EXPECT_EQ(ground.request().poll(), 0);
      graph->replay();
      EXPECT_TRUE(ground.as_expected());
      const Answer told = check(ground.a(), ground.request());
      EXPECT_EQ(told.code, Code::ok) << told.text;
      EXPECT_EQ(told.replays, replay);
    }
    EXPECT_EQ(ground.request().ends(), 1U) << "a replay is no post";
    end_capture(ground.a(), ground.request());
  }
}

TEST_P(Captures, that_ended_leave_a_request_that_is_posted_and_captured_again) {
  Ground ground(*this, HEADRACE_WRITE);
  Numbers reversed = in_order();
  std::ranges::reverse(reversed);
  for (int round = 0; round < 3; ++round) {
    {
      const auto graph = captured(ground.a(), ground.request());
      graph->replay();
      EXPECT_EQ(renumber(ground.a(), ground.request(), {}, reversed).code, Code::ok);
      graph->replay();
      EXPECT_EQ(check(ground.a(), ground.request()).replays, 2U) << "counted from this capture on";
    }
    end_capture(ground.a(), ground.request());
    ground.refill();
    ASSERT_TRUE(ground.request().run().status.ok());
    ground.move(in_order(), in_order());
    EXPECT_TRUE(ground.as_expected()) << "posts move the pages that the request was prepared with";
  }
}

TEST_P(Captures, that_ended_give_back_all_that_they_took) {
  Ground ground(*this, HEADRACE_READ);
  const auto capture_once = [&] {
    {
      const auto graph = captured(ground.a(), ground.request());
      EXPECT_EQ(renumber(ground.a(), ground.request(), {}, in_order()).code, Code::ok);
      graph->replay();
    }
    end_capture(ground.a(), ground.request());
  };
  capture_once();  // what is made once is made here
  const cuda::FakeCuda::Live before = driver().live();
  for (int round = 0; round < 20; ++round) capture_once();
  EXPECT_TRUE(driver().live() == before)
      << driver().live().allocations << " allocations, " << before.allocations << " before";
}

TEST_P(Captures, before_the_way_to_the_peers_memory_is_made_would_block_and_change_nothing) {
  const Pair pair = open_pair();
  const Memory theirs(Memory::Kind::plain, page_bytes * pages, 2);
  const Region owner(*pair.b, theirs);
  Lists lists(*pair.a, &pair.ab, Remote(pair.ab, owner.facts()), HEADRACE_READ);
  Answer first;
  {
    // No progress of the peer runs, so it does not answer.
    const GpuGraph graph(stream, [&] { first = capture(*pair.a, lists.request); });
  }
  ASSERT_EQ(first.code, Code::would_block) << first.text;
  EXPECT_FALSE(first.captured);
  EXPECT_FALSE(first.text.empty());
  ASSERT_TRUE(lists.request.run().status.ok());
  EXPECT_TRUE(same_bytes(lists.mine.bytes(), theirs.bytes()));
  fill_pattern(theirs.bytes(), 77);
  {
    const auto graph = captured(*pair.a, lists.request);
    graph->replay();
    EXPECT_TRUE(same_bytes(lists.mine.bytes(), theirs.bytes()));
  }
  end_capture(*pair.a, lists.request);
}

TEST_P(Captures, with_a_message_are_refused_and_spoil_neither_graph_nor_request) {
  Ground ground(*this, HEADRACE_WRITE);
  Answer refused;
  {
    const GpuGraph graph(stream, [&] { refused = capture(ground.a(), ground.request(), nullptr, true); });
    EXPECT_EQ(refused.code, Code::not_supported);
    EXPECT_FALSE(refused.captured);
    EXPECT_FALSE(refused.text.empty());
    EXPECT_EQ(refused.page, HEADRACE_NO_PAGE);
    graph.replay();
    EXPECT_TRUE(ground.as_expected()) << "a refused request is in the graph";
  }
  ASSERT_TRUE(ground.request().run().status.ok());
  ground.move(in_order(), in_order());
  EXPECT_TRUE(ground.as_expected());
}

TEST_P(Captures, take_other_page_numbers_for_the_replays_that_follow_in_the_streams_order) {
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    Ground ground(*this, op);
    const auto graph = captured(ground.a(), ground.request());
    Numbers local = in_order(), remote = in_order();
    std::shuffle(local.begin(), local.end(), random);
    std::shuffle(remote.begin(), remote.end(), random);
    const Numbers few(remote.begin(), remote.begin() + 7);
    struct Change {
      Numbers given_local, given_remote;  // none: this side's first pages stay as they are
      Numbers local, remote;              // what the replay moves then
    };
    for (const Change& change :
         {Change{{}, remote, in_order(), remote}, Change{local, {}, local, remote},
          Change{in_order(), in_order(), in_order(), in_order()}, Change{local, remote, local, remote},
          Change{{}, few, {local.begin(), local.begin() + 7}, few}, Change{{39}, {0}, {39}, {0}}}) {
      ground.refill();
      const Answer answer = renumber(ground.a(), ground.request(), change.given_local, change.given_remote);
      ASSERT_EQ(answer.code, Code::ok) << answer.text;
      graph->replay();
      ground.move(change.local, change.remote);
      EXPECT_TRUE(ground.as_expected())
          << change.given_local.size() << " local numbers, " << change.given_remote.size() << " remote ones";
    }
    // Queued between two replays on one stream, a change is for the second alone.
    driver().hold();
    ground.refill();
    EXPECT_EQ(renumber(ground.a(), ground.request(), {1}, {2}).code, Code::ok);
    graph->launch();
    EXPECT_EQ(renumber(ground.a(), ground.request(), {3}, {4}).code, Code::ok);
    graph->launch();
    EXPECT_TRUE(ground.as_expected()) << "the stream is held";
    driver().release();
    ASSERT_TRUE(stream.wait_idle());
    ground.move({1, 3}, {2, 4});
    EXPECT_TRUE(ground.as_expected());
    EXPECT_EQ(check(ground.a(), ground.request()).replays, 8U);
    end_capture(ground.a(), ground.request());
  }
}

TEST_P(Captures, read_the_numbers_that_their_graph_names_at_every_replay) {
  Ground ground(*this, HEADRACE_READ);
  const Memory table_there(Memory::Kind::plain, pages * sizeof(std::uint32_t), 1);
  auto* const numbers = reinterpret_cast<std::uint32_t*>(table_there.bytes().data());
  const headrace_indices_v1 named = indices(nullptr, numbers, pages, HEADRACE_VRAM);
  const auto graph = captured(ground.a(), ground.request(), &named);
  for (int replay = 0; replay < 4; ++replay) {
    Numbers remote = in_order();
    std::shuffle(remote.begin(), remote.end(), random);
    std::ranges::copy(remote, numbers);
    ground.refill();
    graph->replay();
    ground.move(in_order(), remote);
    EXPECT_TRUE(ground.as_expected());
  }
  end_capture(ground.a(), ground.request());
}

TEST_P(Captures, pass_over_numbers_out_of_bounds_and_tell_it_once) {
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const bool of_local : {true, false}) {
      SCOPED_TRACE(fmt::format("{} with wrong {} numbers", op == HEADRACE_READ ? "read" : "write",
                               of_local ? "local" : "remote"));
      Ground ground(*this, op);
      const auto graph = captured(ground.a(), ground.request());
      const Memory table_there(Memory::Kind::plain, pages * sizeof(std::uint32_t), 1);
      auto* const numbers = reinterpret_cast<std::uint32_t*>(table_there.bytes().data());
      std::ranges::copy(in_order(), numbers);
      numbers[5] = pages;  // the first that is none
      numbers[9] = UINT32_MAX;
      const Answer taken = set_indices(
          ground.a(), ground.request(),
          indices(of_local ? numbers : nullptr, of_local ? nullptr : numbers, pages, HEADRACE_VRAM));
      ASSERT_EQ(taken.code, Code::ok) << "nobody has looked at GPU memory: " << taken.text;
      ground.refill();
      graph->replay();
      Numbers good = in_order();
      std::erase_if(good, [](std::uint32_t page) { return page == 5 || page == 9; });
      ground.move(good, good);
      EXPECT_TRUE(ground.as_expected()) << "all others move, and these two nowhere";
      const Answer told = check(ground.a(), ground.request());
      EXPECT_EQ(told.code, Code::invalid_argument);
      EXPECT_TRUE(told.page == 5 || told.page == 9) << told.page;
      EXPECT_FALSE(told.text.empty());
      const Answer again = check(ground.a(), ground.request());
      EXPECT_EQ(again.code, Code::ok) << again.text;
      EXPECT_EQ(again.replays, 1U);
      ASSERT_EQ(renumber(ground.a(), ground.request(), in_order(), in_order()).code, Code::ok);
      ground.refill();
      graph->replay();
      ground.move(in_order(), in_order());
      EXPECT_TRUE(ground.as_expected()) << "good numbers are as good as before";
      EXPECT_EQ(check(ground.a(), ground.request()).code, Code::ok);
      end_capture(ground.a(), ground.request());
    }
  }
}

TEST_P(Captures, of_pages_that_are_no_uniform_list_refuse_other_numbers) {
  const Pair pair = open_pair();
  const Memory mine(Memory::Kind::plain, 10'000, 1), theirs(Memory::Kind::plain, 10'000, 2);
  const Region local(*pair.a, mine), owner(*pair.b, theirs);
  const Remote remote(pair.ab, owner.facts());
  PageSide of_any_length = uniform_side(local.handle(), 0, 0, 0);
  of_any_length.region_of = {0, 0, 0};
  of_any_length.offsets = {7, 500, 3000};
  of_any_length.lengths = {100, 100, 100};
  Request request(*pair.a, HEADRACE_READ, &pair.ab, of_any_length, uniform_side(remote.handle(), 0, 100, 100),
                  3);
  ASSERT_TRUE(request.run().status.ok());
  {
    const auto graph = captured(*pair.a, request);
    const Answer refused = renumber(*pair.a, request, {0, 1}, {1, 0});
    EXPECT_EQ(refused.code, Code::not_supported);
    EXPECT_FALSE(refused.text.empty());
    fill_pattern(theirs.bytes(), 50);
    graph->replay();
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(same_bytes(mine.bytes().subspan(of_any_length.offsets[i], 100),
                             theirs.bytes().subspan(i * 100, 100)));
  }
  end_capture(*pair.a, request);
}

TEST_P(Captures, refuse_other_numbers_while_their_stream_is_being_captured) {
  Ground ground(*this, HEADRACE_READ);
  const auto graph = captured(ground.a(), ground.request());
  Answer refused;
  {
    const GpuGraph other(stream, [&] { refused = renumber(ground.a(), ground.request(), {}, in_order()); });
  }
  EXPECT_EQ(refused.code, Code::invalid_argument);
  EXPECT_FALSE(refused.text.empty());
  graph->replay();
  ground.move(in_order(), in_order());
  EXPECT_TRUE(ground.as_expected());
  end_capture(ground.a(), ground.request());
}

TEST_P(Captures, take_as_many_changes_as_fit_and_would_block_until_the_stream_has_caught_up) {
  Ground ground(*this, HEADRACE_READ);
  const auto graph = captured(ground.a(), ground.request());
  driver().hold();
  std::uint32_t taken = 0;
  Answer answer;
  while (taken < 10'000 && answer.code == Code::ok) {
    answer = renumber(ground.a(), ground.request(), {}, {taken % pages});
    if (answer.code == Code::ok) ++taken;
  }
  ASSERT_EQ(answer.code, Code::would_block) << taken << " changes are queued: " << answer.text;
  ASSERT_GT(taken, 0U);
  EXPECT_FALSE(answer.text.empty());
  graph->launch();
  driver().release();
  ASSERT_TRUE(stream.wait_idle());
  ground.move({0}, {(taken - 1) % pages});
  EXPECT_TRUE(ground.as_expected()) << "the last change that was taken counts";
  EXPECT_EQ(renumber(ground.a(), ground.request(), {}, {11}).code, Code::ok);
  graph->replay();
  ground.move({0}, {11});
  EXPECT_TRUE(ground.as_expected());
  end_capture(ground.a(), ground.request());
}

TEST_P(Captures, tell_that_the_peers_region_is_registered_no_longer) {
  Ground ground(*this, HEADRACE_READ);
  const auto graph = captured(ground.a(), ground.request());
  graph->replay();
  EXPECT_EQ(check(ground.a(), ground.request()).code, Code::ok);
  ground.owner.deregister();  // by an owner that does not wait for its peers
  Answer told;
  EXPECT_TRUE(world.until([&] {
    told = check(ground.a(), ground.request());
    return told.code != Code::ok;
  })) << world.describe();
  EXPECT_EQ(told.code, Code::not_found);
  EXPECT_FALSE(told.text.empty());
  end_capture(ground.a(), ground.request());
}

// Replays that the peer counts.

TEST_P(Captures, with_an_immediate_are_counted_once_a_replay_and_after_its_bytes) {
  for (const headrace_op_v1 op : {HEADRACE_WRITE, HEADRACE_READ}) {
    Ground ground(*this, op);
    PluginHost& owner = ground.pair.b->host();
    immediate = {7, op == HEADRACE_READ ? 1U : 2U};
    std::uint64_t wrong = 0;
    owner.on_counted = [&](const HostCount& count) {
      if (count.scope != immediate->scope || count.immediate != immediate->value || !ground.as_expected())
        ++wrong;
    };
    const auto graph = captured(ground.a(), ground.request());
    for (std::uint64_t replay = 1; replay <= 1000; ++replay) {
      ground.refill();
      ground.move(in_order(), in_order());
      graph->launch();
      ASSERT_TRUE(world.until([&] { return owner.count_of(7, immediate->value) == replay; }))
          << world.describe();
    }
    EXPECT_EQ(wrong, 0U);
    EXPECT_EQ(check(ground.a(), ground.request()).replays, 1000U);
    end_capture(ground.a(), ground.request());
    ground.pair.ab.send(world, HEADRACE_CHANNEL_USER, "behind all counts");
    ASSERT_TRUE(world.until([&] { return owner.message_count() == 1; })) << world.describe();
    EXPECT_EQ(owner.count_of(7, immediate->value), 1000U);
    owner.on_counted = nullptr;
  }
}

TEST_P(Captures, with_an_immediate_are_counted_as_often_as_replays_that_nobody_waited_for_end) {
  Ground ground(*this, HEADRACE_WRITE);
  PluginHost& owner = ground.pair.b->host();
  immediate = {0, UINT32_MAX};
  const auto graph = captured(ground.a(), ground.request());
  driver().hold();
  for (int replay = 0; replay < 100; ++replay) graph->launch();
  ground.pair.ab.send(world, HEADRACE_CHANNEL_USER, "before");
  ASSERT_TRUE(world.until([&] { return owner.message_count() == 1; })) << world.describe();
  EXPECT_EQ(owner.count_of(0, UINT32_MAX), 0U) << "none has ended";
  driver().release();
  ASSERT_TRUE(world.until([&] { return owner.count_of(0, UINT32_MAX) >= 100; })) << world.describe();
  EXPECT_EQ(owner.count_of(0, UINT32_MAX), 100U);
  end_capture(ground.a(), ground.request());
}

TEST_P(Captures, that_were_ended_have_every_replay_before_counted_once_and_none_after) {
  Ground ground(*this, HEADRACE_WRITE);
  PluginHost& owner = ground.pair.b->host();
  for (std::uint32_t round = 0; round < 20; ++round) {
    immediate = {round, 5};
    {
      const auto graph = captured(ground.a(), ground.request());
      for (std::uint32_t replay = 0; replay < round; ++replay) graph->replay();
    }
    end_capture(ground.a(), ground.request());  // no progress has run since the replays
    immediate.reset();
    {
      const auto uncounted = captured(ground.a(), ground.request());
      uncounted->replay();
    }
    end_capture(ground.a(), ground.request());
    ground.request().set_immediate(plugin::Immediate{round, 5});
    ASSERT_TRUE(ground.request().run().status.ok());
    ground.request().set_immediate(std::nullopt);
  }
  ground.pair.ab.send(world, HEADRACE_CHANNEL_USER, "behind all counts");
  ASSERT_TRUE(world.until([&] { return owner.message_count() == 1; })) << world.describe();
  for (std::uint32_t round = 0; round < 20; ++round) EXPECT_EQ(owner.count_of(round, 5), round + 1);
}

TEST_P(Captures, with_an_immediate_end_while_other_threads_look_for_replays) {
  Ground ground(*this, HEADRACE_WRITE);
  PluginHost& owner = ground.pair.b->host();
  immediate = {1, 1};
  world.start_driver();
  constexpr std::uint64_t rounds = 30, replays = 10;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    {
      const auto graph = captured(ground.a(), ground.request());
      for (std::uint64_t replay = 0; replay < replays; ++replay) graph->launch();
      ASSERT_TRUE(stream.wait_idle());
    }
    end_capture(ground.a(), ground.request());
  }
  EXPECT_TRUE(world.until([&] { return owner.count_of(1, 1) >= rounds * replays; })) << world.describe();
  world.stop_driver();
  EXPECT_EQ(owner.count_of(1, 1), rounds * replays);
}

TEST_P(Captures, with_an_immediate_are_not_counted_once_the_owner_has_given_up_its_memory) {
  Ground ground(*this, HEADRACE_WRITE);
  PluginHost& owner = ground.pair.b->host();
  immediate = {1, 1};
  const auto graph = captured(ground.a(), ground.request());
  graph->replay();
  ASSERT_TRUE(world.until([&] { return owner.count_of(1, 1) == 1; })) << world.describe();
  ground.owner.deregister();  // by an owner that does not wait for its peers
  graph->replay();
  end_capture(ground.a(), ground.request());
  ground.pair.ab.send(world, HEADRACE_CHANNEL_USER, "behind all counts");
  ASSERT_TRUE(world.until([&] { return owner.message_count() == 1; })) << world.describe();
  EXPECT_EQ(owner.count_of(1, 1), 1U);
}

TEST_P(Captures, with_an_immediate_outlive_their_link) {
  Ground ground(*this, HEADRACE_WRITE);
  immediate = {1, 1};
  const auto graph = captured(ground.a(), ground.request());
  graph->replay();
  ASSERT_TRUE(world.until([&] { return ground.pair.b->host().count_of(1, 1) == 1; })) << world.describe();
  ground.pair.ba.disconnect();
  ASSERT_TRUE(world.until([&] { return ground.pair.ab.lost(); })) << world.describe();
  graph->replay();
  ground.pair.ab.disconnect();
  graph->replay();
  for (int look = 0; look < 10; ++look) world.progress();
  end_capture(ground.a(), ground.request());
  EXPECT_EQ(ground.pair.b->host().count_of(1, 1), 1U);
}

// ------------------------------------------------------------------------------------------ two processes

class CapturesBetweenProcesses : public CapturesOf<ContractBetweenProcesses> {};
INSTANTIATE_TEST_SUITE_P(backend, CapturesBetweenProcesses, testing::ValuesIn(capture_cases(HEADRACE_REMOTE)),
                         CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CapturesBetweenProcesses);

TEST_P(CapturesBetweenProcesses, replay_what_another_process_holds_then) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const RegionFacts facts = b->region(Memory::Kind::shared, page_bytes * pages, 5);
  Lists lists(*a, &ab, Remote(ab, facts), HEADRACE_READ);
  ASSERT_TRUE(lists.request.run().status.ok());
  const auto graph = captured(*a, lists.request);
  Bytes expected(page_bytes * pages);
  for (std::uint64_t seed = 60; seed < 63; ++seed) {
    b->ask(fmt::format("fill {} {}", facts.id, seed));
    fill_pattern(expected, seed);
    graph->replay();
    EXPECT_TRUE(same_bytes(lists.mine.bytes(), expected));
  }
  EXPECT_EQ(check(*a, lists.request).replays, 3U);
  end_capture(*a, lists.request);
}

TEST_P(CapturesBetweenProcesses, hold_the_memory_of_a_peer_that_was_killed_and_tell_that_it_is_lost) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const RegionFacts facts = b->region(Memory::Kind::plain, page_bytes * pages, 5);
  Lists lists(*a, &ab, Remote(ab, facts), HEADRACE_READ);
  ASSERT_TRUE(lists.request.run().status.ok());
  const auto graph = captured(*a, lists.request);
  b->kill();
  set_bytes(lists.mine.bytes(), std::byte{0});
  graph->replay();  // of memory that nobody else has any more
  Bytes expected(page_bytes * pages);
  fill_pattern(expected, 5);
  EXPECT_TRUE(same_bytes(lists.mine.bytes(), expected));
  Answer told;
  EXPECT_TRUE(world.until([&] {
    told = check(*a, lists.request);
    return told.code != Code::ok;
  })) << world.describe();
  EXPECT_EQ(told.code, Code::peer_lost);
  EXPECT_NE(told.text.find('b'), std::string::npos) << told.text;
  graph->replay();
  EXPECT_EQ(check(*a, lists.request).code, Code::peer_lost) << "as often as it is asked";
  end_capture(*a, lists.request);
}

// ------------------------------------------------------------------------------------------ inside one agent

class LocalCaptures : public CapturesOf<Contract> {};
INSTANTIATE_TEST_SUITE_P(backend, LocalCaptures, testing::ValuesIn(capture_cases(HEADRACE_LOCAL)),
                         CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LocalCaptures);

TEST_P(LocalCaptures, move_between_two_gpus_at_every_replay) {
  const auto a = open();
  FakeGpus::of_this_process().choose(1);
  const Memory other(Memory::Kind::plain, page_bytes * pages, 2);
  FakeGpus::of_this_process().choose(0);
  const Region there(*a, other);
  Lists lists(*a, nullptr, Remote(*a, there), HEADRACE_WRITE);
  {
    const auto graph = captured(*a, lists.request);
    for (std::uint64_t replay = 1; replay <= 3; ++replay) {
      fill_pattern(lists.mine.bytes(), 80 + replay);
      graph->replay();
      EXPECT_TRUE(same_bytes(lists.mine.bytes(), other.bytes()));
      EXPECT_EQ(check(*a, lists.request).replays, replay);
    }
  }
  end_capture(*a, lists.request);
  fill_pattern(lists.mine.bytes(), 99);
  ASSERT_TRUE(lists.request.run().status.ok());
  EXPECT_TRUE(same_bytes(lists.mine.bytes(), other.bytes()));
}

TEST_P(LocalCaptures, with_an_immediate_are_counted_by_their_own_agent) {
  const auto a = open();
  const Memory other(Memory::Kind::plain, page_bytes * pages, 2);
  const Region there(*a, other);
  Lists lists(*a, nullptr, Remote(*a, there), HEADRACE_WRITE);
  immediate = {3, 4};
  {
    const auto graph = captured(*a, lists.request);
    for (std::uint64_t replay = 1; replay <= 10; ++replay) {
      graph->launch();
      ASSERT_TRUE(world.until([&] { return a->host().count_of(3, 4) == replay; })) << world.describe();
    }
    graph->replay();
  }
  end_capture(*a, lists.request);
  EXPECT_EQ(a->host().count_of(3, 4), 11U);
}

}  // namespace
}  // namespace headrace::contract
