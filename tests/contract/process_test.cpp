// SPDX-License-Identifier: Apache-2.0
// The same between processes, and what only a process can do: be killed, and be stopped.
#include "contract/peer_process.hpp"

#include "base/hash.hpp"
#include "base/random.hpp"

#include <algorithm>
#include <csignal>
#include <thread>

namespace headrace::contract {
namespace {

class Processes : public ContractBetweenProcesses {
 protected:
  void kill_peers(int lives);
};
INSTANTIATE_TEST_SUITE_P(backend, Processes, testing::ValuesIn(process_cases(HEADRACE_REMOTE)), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Processes);

/// The peer's regions, and beside each what must be in it.
struct FarArena {
  explicit FarArena(PeerProcess& owner) : peer(owner) {}
  void add(Memory::Kind kind, std::uint64_t length) {
    const std::uint64_t seed = 100 + facts.size();
    facts.push_back(peer.region(kind, length, seed));
    expected.emplace_back(length);
    fill_pattern(expected.back(), seed);
  }
  void refill(std::uint64_t seed) {
    for (std::size_t i = 0; i < facts.size(); ++i) {
      peer.ask(fmt::format("fill {} {}", facts[i].id, seed + i));
      fill_pattern(expected[i], seed + i);
    }
  }
  [[nodiscard]] testing::AssertionResult as_expected() {
    for (std::size_t i = 0; i < facts.size(); ++i)
      if (peer.hash(facts[i]) != hash64(expected[i]))
        return testing::AssertionFailure()
               << "region " << i << " of the peer holds other bytes than it should";
    return testing::AssertionSuccess();
  }
  PeerProcess& peer;
  std::vector<RegionFacts> facts;
  std::vector<Bytes> expected;
};

Bytes reversed_pages(std::span<const std::byte> bytes, std::size_t page) {
  Bytes all;
  for (std::size_t at = bytes.size(); at > 0; at -= page)
    all.insert(all.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at - page),
               bytes.begin() + static_cast<std::ptrdiff_t>(at));
  return all;
}

TEST_P(Processes, random_pages_move_both_ways_and_nothing_else_changes) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  Arena near(*a);
  FarArena far(*b);
  near.add_mixed(3, 3 << 20);
  for (int i = 0; i < 4; ++i) far.add(i % 2 == 0 ? Memory::Kind::plain : Memory::Kind::shared, 2 << 20);
  std::vector<Remote> remotes;
  for (const RegionFacts& facts : far.facts) remotes.emplace_back(ab, facts);
  std::vector<std::uint64_t> far_sizes(far.facts.size(), 2 << 20);
  std::uint64_t seed = 1000;
  const std::vector<RandomPages> shapes = {
      {.count = 1, .min_bytes = 1, .max_bytes = 1},
      {.count = 5000, .min_bytes = 1, .max_bytes = 300},
      {.count = 1000, .min_bytes = 513, .max_bytes = 513},
      {.count = 257, .min_bytes = 4096, .max_bytes = 4096, .neighbours = 50},
      {.count = 4, .min_bytes = 300'000, .max_bytes = 400'000}};
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const RandomPages& shape : shapes) {
      SCOPED_TRACE(fmt::format("{} of {} pages of {}..{} bytes", op == HEADRACE_READ ? "read" : "write",
                               shape.count, shape.min_bytes, shape.max_bytes));
      const auto pages = random_pages(random, shape, op, near.sizes(), far_sizes);
      Request request(*a, op, &ab, side_of(pages, true, SideShape::general_indexed, near.handles(), random),
                      side_of(pages, false, SideShape::general, handles_of(remotes), random), pages.size());
      const PostEnd end = request.run();
      ASSERT_TRUE(end.status.ok()) << code_name(end.status.code) << ": " << end.text;
      move_pages(pages, op, near.expected(), far.expected);
      ASSERT_TRUE(near.as_expected());
      ASSERT_TRUE(far.as_expected());
      near.refill();
      far.refill(seed += 10);
    }
  }
  remotes.clear();
}

TEST_P(Processes, one_page_of_64_mib_moves) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  constexpr std::uint64_t bytes = 64 << 20;
  for (const Memory::Kind kind : {Memory::Kind::plain, Memory::Kind::shared}) {
    const Memory memory(kind, bytes, 1);
    const Region mine(*a, memory);
    const RegionFacts facts = b->region(kind, bytes, 2);
    const Remote remote(ab, facts);
    Request write(*a, HEADRACE_WRITE, &ab, uniform_side(mine.handle(), 0, bytes, bytes),
                  uniform_side(remote.handle(), 0, bytes, bytes), 1);
    ASSERT_TRUE(write.run().status.ok());
    ASSERT_EQ(b->hash(facts), hash64(memory.bytes()));
    b->ask(fmt::format("fill {} 77", facts.id));
    Request read(*a, HEADRACE_READ, &ab, uniform_side(mine.handle(), 0, bytes, bytes),
                 uniform_side(remote.handle(), 0, bytes, bytes), 1);
    ASSERT_TRUE(read.run().status.ok());
    ASSERT_EQ(b->hash(facts), hash64(memory.bytes()));
  }
}

TEST_P(Processes, the_message_of_a_write_comes_after_its_bytes) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  constexpr std::uint64_t page_bytes = 5000, pages = 60;
  const RegionFacts facts = b->region(Memory::Kind::shared, page_bytes * pages, 1);
  b->ask(fmt::format("watch {}", facts.id));
  const Memory memory(Memory::Kind::plain, page_bytes * pages, 1);
  const Region mine(*a, memory);
  const Remote remote(ab, facts);
  Request request(*a, HEADRACE_WRITE, &ab, uniform_side(mine.handle(), 0, page_bytes, page_bytes),
                  uniform_side(remote.handle(), 0, page_bytes, page_bytes), pages);
  for (std::uint64_t i = 0; i < 40; ++i) {
    fill_pattern(memory.bytes(), 500 + i);
    request.post(std::to_string(i));
    ASSERT_TRUE(request.wait().status.ok());
    // The peer drives itself; ours may still have to send.
    ASSERT_EQ(std::stoull(b->ask(fmt::format("await {}", i + 1))), i + 1);
    const auto words = words_of(b->ask(fmt::format("message {}", i)));
    ASSERT_EQ(from_hex(words.at(2)), std::to_string(i));
    ASSERT_EQ(std::stoull(words.at(1)), hash64(memory.bytes()))
        << "bytes were missing when message " << i << " came";
  }
}

TEST_P(Processes, messages_go_both_ways_in_order) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  world.start_driver();
  for (std::size_t i = 0; i < 100; ++i) {
    ab.send(world, HEADRACE_CHANNEL_USER, fmt::format("{}", i));
    b->ask(fmt::format("send 0 1 {}", to_hex(fmt::format("{}", i))));
  }
  b->ask("await 100");
  ASSERT_TRUE(world.until([&] { return a->host().message_count() == 100; })) << world.describe();
  world.stop_driver();
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(a->host().messages()[i].bytes, fmt::format("{}", i));
    EXPECT_EQ(a->host().messages()[i].channel, 1U);
    EXPECT_EQ(from_hex(words_of(b->ask(fmt::format("message {}", i))).at(2)), fmt::format("{}", i));
  }
}

/// The memory of traffic at this end. A test fills it once, also for a peer that lives several times.
struct TrafficMemory {
  static constexpr std::uint64_t bytes = 8 << 20;

  static Memory::Kind kind_of(std::size_t i) {
    return i % 2 == 0 ? Memory::Kind::plain : Memory::Kind::shared;
  }
  TrafficMemory() {
    for (std::size_t i = 0; i < 4; ++i) memories.push_back(std::make_unique<Memory>(kind_of(i), bytes, i));
  }
  std::vector<std::unique_ptr<Memory>> memories;
};

/// Requests large and small that are in flight when something happens to the peer.
struct Traffic {
  Traffic(const TrafficMemory& memory, Instance& a, const Link& ab, PeerProcess& b) {
    constexpr std::uint64_t bytes = TrafficMemory::bytes;
    for (std::uint64_t i = 0; i < memory.memories.size(); ++i) {
      const Memory::Kind kind = TrafficMemory::kind_of(i);
      regions.push_back(std::make_unique<Region>(a, *memory.memories[i]));
      remotes.push_back(std::make_unique<Remote>(ab, b.region(kind, bytes, i)));
      const std::uint64_t page = i < 2 ? 4096 : 1 << 20;
      requests.push_back(std::make_unique<Request>(a, i % 2 == 0 ? HEADRACE_WRITE : HEADRACE_READ, &ab,
                                                   uniform_side(regions.back()->handle(), 0, page, page),
                                                   uniform_side(remotes.back()->handle(), 0, page, page),
                                                   bytes / page));
    }
  }
  std::vector<std::unique_ptr<Region>> regions;
  std::vector<std::unique_ptr<Remote>> remotes;
  std::vector<std::unique_ptr<Request>> requests;
};

/// Of a peer that was killed: each post ends, and the link is lost. Adds the posts that the kill ended.
void expect_the_end(World& world, Traffic& traffic, Instance& a, const Link& ab, int& lost_posts) {
  for (const auto& request : traffic.requests) {
    const PostEnd end = request->wait();
    EXPECT_TRUE(one_of(end.status.code, {Code::ok, Code::peer_lost})) << end.text;
    if (end.status.code == Code::peer_lost) ++lost_posts;
  }
  ASSERT_TRUE(world.until([&] { return ab.lost(); })) << world.describe();
  EXPECT_EQ(a.host().link(ab.token())->lost_status.code, Code::peer_lost);
}

/// Goes on until a kill met a post in flight: without the owner's help a post may end before the kill comes.
void Processes::kill_peers(int lives) {
  const TrafficMemory memory;
  const auto a = open();
  int lost_posts = 0;
  const Deadline deadline = Deadline::after(World::default_limit);
  for (int life = 0; life < lives || (lost_posts == 0 && !deadline.expired()); ++life) {
    const auto b = start_peer();
    Link ab = connect(*a, *b);
    Traffic traffic(memory, *a, ab, *b);
    ASSERT_TRUE(traffic.requests[0]->run().status.ok());
    for (const auto& request : traffic.requests) request->post("for nobody");
    for (int i = 0; i < life % 10; ++i) (void)world.progress();
    b->kill();
    ASSERT_NO_FATAL_FAILURE(expect_the_end(world, traffic, *a, ab, lost_posts));
    EXPECT_EQ(traffic.requests[0]->try_post().code, Code::peer_lost);
    EXPECT_EQ(ab.notify(0, "too late").code, Code::peer_lost);
  }
  EXPECT_GT(lost_posts, 0) << "no post was in flight when its peer was killed";
}

TEST_P(Processes, a_killed_peer_ends_every_post_and_its_next_life_is_reached) { kill_peers(4); }
TEST_P(Processes, a_killed_peer_ends_every_post_and_its_next_life_is_reached_many_rounds) { kill_peers(10); }

TEST_P(Processes, a_peer_that_forks_goes_on_and_is_lost_when_it_dies_though_its_child_lives) {
  const TrafficMemory memory;
  // The child has the sockets of a peer over tcp, so that the silence alone tells its end.
  auto settings = GetParam().settings;
  if (GetParam().name().starts_with("tcp")) settings["heartbeat_timeout"] = "2500ms";
  const auto a = std::make_unique<Instance>(
      world, table, settings, PluginHost::Args{.agent_name = "a", .incarnation = random_u64() | 1});
  const auto b = start_peer();
  Link ab = connect(*a, *b);
  Traffic traffic(memory, *a, ab, *b);
  for (const auto& request : traffic.requests) request->post("before");
  b->ask("fork");
  for (const auto& request : traffic.requests) ASSERT_TRUE(request->wait().status.ok());
  for (const auto& request : traffic.requests) request->post("after");
  for (const auto& request : traffic.requests) ASSERT_TRUE(request->wait().status.ok());
  b->ask("await 8");
  for (const auto& request : traffic.requests) request->post("for nobody");
  b->kill();
  int lost_posts = 0;  // any number: what counts here is that the link is lost
  expect_the_end(world, traffic, *a, ab, lost_posts);
}

TEST_P(Processes, a_peer_that_ends_in_good_order_is_lost_as_well) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  b->quit();
  ASSERT_TRUE(world.until([&] { return ab.lost(); })) << world.describe();
  EXPECT_EQ(a->host().link(ab.token())->lost_status.code, Code::peer_lost);
}

TEST_P(Processes, links_to_a_process_that_is_gone_fail) {
  const auto a = open();
  const auto b = start_peer();
  const std::string info = b->connection_info();
  b->kill();
  auto link = a->try_connect("b", b->incarnation(), info);
  if (!link) {
    EXPECT_TRUE(one_of(link.code(), {Code::peer_lost, Code::not_supported, Code::timed_out}));
    return;
  }
  ASSERT_TRUE(world.until([&] { return link->lost(); })) << world.describe();
  EXPECT_TRUE(one_of(a->host().link(link->token())->lost_status.code,
                     {Code::peer_lost, Code::not_supported, Code::timed_out}));
}

TEST_P(Processes, posts_to_a_stopped_peer_end_soon_after_they_are_canceled) {
  const TrafficMemory memory;
  const auto a = open();
  int canceled_in_flight = 0;
  const Deadline deadline = Deadline::after(World::default_limit);
  for (int round = 0; round < 3 || (canceled_in_flight == 0 && !deadline.expired()); ++round) {
    const auto b = start_peer();
    Link ab = connect(*a, *b);
    Traffic traffic(memory, *a, ab, *b);
    b->signal(SIGSTOP);
    for (const auto& request : traffic.requests) request->post();
    for (int i = 0; i < round % 3 * 10; ++i) (void)world.progress();
    for (const auto& request : traffic.requests) {
      if (request->in_flight()) ++canceled_in_flight;
      request->cancel();
    }
    const Deadline soon =
        Deadline::after(std::chrono::seconds(10));  // a second is promised; the machine may be busy
    for (const auto& request : traffic.requests) {
      ASSERT_TRUE(
          world.until([&] { return !request->in_flight(); }, std::chrono::nanoseconds(soon.remaining_ns())))
          << world.describe();
      EXPECT_TRUE(one_of(a->host().last_end(request->slot())->status.code,
                         {Code::ok, Code::canceled, Code::backend_failed, Code::peer_lost}));
    }
    b->signal(SIGCONT);
  }
  EXPECT_GT(canceled_in_flight, 0) << "each post had ended before it was canceled";
}

TEST_P(Processes, a_write_to_a_stopped_peer_changes_nothing_once_it_has_ended) {
  constexpr std::uint64_t bytes = 8 << 20;
  const auto a = open();
  for (const std::uint64_t page : {std::uint64_t{4096}, std::uint64_t{1} << 20}) {
    const auto b = start_peer();
    const Link ab = connect(*a, *b);
    const Memory memory(Memory::Kind::plain, bytes, 1);
    const Region mine(*a, memory);
    const RegionFacts theirs = b->host_region(Memory::Kind::plain, bytes, 2);
    const Remote remote(ab, theirs);
    Request request(*a, HEADRACE_WRITE, &ab, uniform_side(mine.handle(), 0, page, page),
                    uniform_side(remote.handle(), 0, page, page), bytes / page);
    ASSERT_TRUE(request.run().status.ok());
    fill_pattern(memory.bytes(), 3);
    b->signal(SIGSTOP);
    request.post();
    for (int i = 0; i < 10; ++i) (void)world.progress();
    request.cancel();
    (void)request.wait();
    const auto at_its_end = b->bytes_of(theirs);
    b->signal(SIGCONT);
    EXPECT_FALSE(world.until([] { return false; }, std::chrono::milliseconds(300)));
    EXPECT_EQ(b->bytes_of(theirs) == at_its_end, true) << "pages of " << page;
  }
}

/// Without those in which lost memory ends the link: tcp cannot take back the header of a read's bytes, and
/// of a GPU's memory the driver knows.
std::vector<BackendCase> of_pages_that_get_lost() {
  std::vector<BackendCase> cases = process_cases(HEADRACE_REMOTE);
  std::erase_if(cases, [](const BackendCase& which) { return which.backend != "shm"; });
  return cases;
}

class LostMemoryProcesses : public Processes {
 protected:
  static constexpr std::uint64_t page = 4096, pages = 2048, bytes = page * pages;

  /// Reads the pages of the region in descending order, so that no two merge; not its last ones, `without`
  /// many.
  PostEnd read(Instance& a, const Link& ab, const Region& mine, const Remote& remote,
               std::uint64_t without = 0) {
    PageSide local = uniform_side(mine.handle(), 0, page, page);
    PageSide far = uniform_side(remote.handle(), 0, page, page);
    for (std::uint64_t i = without; i < pages; ++i) {
      local.indices.push_back(static_cast<std::uint32_t>(i));
      far.indices.push_back(static_cast<std::uint32_t>(pages - 1 - i));
    }
    return Request(a, HEADRACE_READ, &ab, std::move(local), std::move(far), pages - without).run();
  }
};
INSTANTIATE_TEST_SUITE_P(backend, LostMemoryProcesses, testing::ValuesIn(of_pages_that_get_lost()),
                         CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LostMemoryProcesses);

TEST_P(LostMemoryProcesses, a_read_of_memory_that_its_owner_has_unmapped_fails_and_the_owner_lives) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const Memory memory(Memory::Kind::plain, bytes, 1);
  const Region mine(*a, memory);
  const RegionFacts kept = b->region(Memory::Kind::plain, bytes, 2);
  const RegionFacts lost = b->region(Memory::Kind::plain, bytes, 3);
  const Remote kept_here(ab, kept), lost_here(ab, lost);
  ASSERT_TRUE(read(*a, ab, mine, lost_here).status.ok());
  b->ask(fmt::format("lose {} {}", lost.id, bytes / 2));
  for (int round = 0; round < 2; ++round) {
    const PostEnd end = read(*a, ab, mine, lost_here);
    EXPECT_EQ(end.status.code, Code::backend_failed) << end.text;
    EXPECT_LT(end.status.page, pages / 2) << "the pages behind it are there: " << end.text;
    EXPECT_NE(end.text.find(fmt::format("region {} ", lost.id)), std::string::npos) << end.text;
    EXPECT_NE(end.text.find("eregister before unmapping"), std::string::npos) << end.text;
    EXPECT_TRUE(read(*a, ab, mine, lost_here, pages / 2 + 1).status.ok()) << "the rest can be read";
    EXPECT_TRUE(read(*a, ab, mine, kept_here).status.ok()) << "other regions can be read";
    EXPECT_EQ(b->hash(kept), hash64(reversed_pages(memory.bytes(), page)));
  }
  b->quit();
}

TEST_P(LostMemoryProcesses, an_owner_that_handles_its_faults_goes_on_doing_so) {
  const auto a = open();
  const Memory memory(Memory::Kind::plain, bytes, 1);
  const Region mine(*a, memory);
  for (const bool before_the_first_read : {true, false}) {
    const auto b = start_peer();
    const Link ab = connect(*a, *b);
    const RegionFacts lost = b->region(Memory::Kind::plain, bytes, 3);
    const Remote lost_here(ab, lost);
    if (before_the_first_read) b->ask("handle");
    ASSERT_TRUE(read(*a, ab, mine, lost_here).status.ok());
    if (!before_the_first_read) b->ask("handle");
    EXPECT_EQ(b->ask("fault"), "1");
    ASSERT_TRUE(read(*a, ab, mine, lost_here).status.ok());
    b->ask(fmt::format("lose {} {}", lost.id, bytes / 2));
    EXPECT_EQ(read(*a, ab, mine, lost_here).status.code, Code::backend_failed);
    EXPECT_EQ(b->ask("fault"), "2");
    b->quit();
  }
}

class CheckedProcesses : public Processes {};
INSTANTIATE_TEST_SUITE_P(backend, CheckedProcesses,
                         testing::ValuesIn(process_cases(HEADRACE_REMOTE | HEADRACE_REVOKE_SAFE)),
                         CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CheckedProcesses);

TEST_P(CheckedProcesses, forged_ranges_and_regions_given_up_are_kept_out) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const Memory memory(Memory::Kind::plain, 1000, 1);
  const Region mine(*a, memory);
  for (const Memory::Kind kind : {Memory::Kind::plain, Memory::Kind::shared}) {
    const RegionFacts facts = b->region(kind, 10'000, 2);
    const std::uint64_t before = b->hash(facts);
    RegionFacts forged = facts;
    forged.length = UINT64_MAX;
    const Remote remote(ab, forged);
    const auto end_of = [&](headrace_op_v1 op, std::uint64_t offset) {
      Request request(*a, op, &ab, uniform_side(mine.handle(), 0, 1000, 1000),
                      uniform_side(remote.handle(), offset, 1000, 1000), 1);
      const Status refused = request.try_post();
      return refused.ok() ? request.wait().status : refused;
    };
    for (const std::uint64_t offset :
         {std::uint64_t{9001}, std::uint64_t{10'000}, UINT64_MAX - 999, UINT64_MAX / 2})
      for (const headrace_op_v1 op : {HEADRACE_WRITE, HEADRACE_READ})
        EXPECT_TRUE(one_of(end_of(op, offset).code, {Code::invalid_argument, Code::not_found}))
            << "offset " << offset;
    EXPECT_EQ(b->hash(facts), before);
    EXPECT_TRUE(end_of(HEADRACE_READ, 9000).ok()) << "the link must go on";
    b->ask(fmt::format("deregister {}", facts.id));
    EXPECT_EQ(end_of(HEADRACE_WRITE, 0).code, Code::not_found);
    EXPECT_EQ(end_of(HEADRACE_READ, 0).code, Code::not_found);
    EXPECT_EQ(b->hash(facts), before);
  }
}

}  // namespace
}  // namespace headrace::contract
