// SPDX-License-Identifier: Apache-2.0
// GPU memory here, and a peer's host memory that was merely registered: the owner's GPU moves, asked by the
// initiator.
#include "contract/fake_gpu_fixture.hpp"

#include "backends/cuda_ipc/link.hpp"
#include "base/hash.hpp"
#include "host_link/memory_file.hpp"
#include "support/open_descriptors.hpp"
#include "support/sleeping_thread.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <numeric>
#include <thread>

namespace headrace::contract {
namespace {

// ------------------------------------------------------------------ two processes

class OwnerMoves : public OverFakeGpus<ContractBetweenProcesses> {};
INSTANTIATE_TEST_SUITE_P(backend, OwnerMoves, testing::ValuesIn(vram_cases()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OwnerMoves);

/// One page between this process's GPU and a region of the peer's.
struct OnePage {
  OnePage(Instance& a, const Link& link, const Memory& near, const RegionFacts& far, headrace_op_v1 op,
          std::uint64_t offset = 0)
      : mine(a, near),
        remote(link, far),
        request(a, op, &link, uniform_side(mine.handle(), 0, near.bytes().size(), near.bytes().size()),
                uniform_side(remote.handle(), offset, near.bytes().size(), near.bytes().size()), 1) {}
  Region mine;
  Remote remote;
  Request request;
};

TEST_P(OwnerMoves, reads_and_writes_of_registered_host_memory_end_with_its_bytes) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  for (const Memory::Kind kind : {Memory::Kind::plain, Memory::Kind::shared}) {
    const Memory memory(kind, 10'001, 1);
    const RegionFacts facts = b->host_region(Memory::Kind::plain, 300'000, 7);
    Bytes expected(300'000);
    fill_pattern(expected, 7);
    OnePage read(*a, ab, memory, facts, HEADRACE_READ, 777);
    OnePage write(*a, ab, memory, facts, HEADRACE_WRITE, 200'003);
    for (std::uint64_t round = 0; round < 3; ++round) {
      const PostEnd end = read.request.run();
      ASSERT_TRUE(end.status.ok()) << end.text;
      ASSERT_TRUE(same_bytes(memory.bytes(), std::span(expected).subspan(777, 10'001)));
      fill_pattern(memory.bytes(), 90 + round);
      ASSERT_TRUE(write.request.run().status.ok());
      std::ranges::copy(memory.bytes(), expected.begin() + 200'003);
      ASSERT_EQ(b->hash(facts), hash64(expected));
    }
  }
}

TEST_P(OwnerMoves, random_pages_in_registered_and_allocated_memory_move_in_one_request) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  Arena near(*a);
  near.add_mixed(3, 3 << 20);
  std::vector<RegionFacts> facts;
  std::vector<Bytes> expected;
  std::vector<Remote> remotes;
  const std::vector<std::uint64_t> sizes(4, 2 << 20);
  for (std::uint64_t i = 0; i < sizes.size(); ++i) {
    facts.push_back(b->host_region(i == 2 ? Memory::Kind::shared : Memory::Kind::plain, sizes[i], i));
    fill_pattern(expected.emplace_back(sizes[i]), i);
    remotes.emplace_back(ab, facts.back());
  }
  const std::vector<RandomPages> shapes = {{.count = 1, .min_bytes = 1, .max_bytes = 1},
                                           {.count = 5000, .min_bytes = 1, .max_bytes = 300},
                                           {.count = 1000, .min_bytes = 513, .max_bytes = 513},
                                           {.count = 4, .min_bytes = 300'000, .max_bytes = 400'000}};
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const RandomPages& shape : shapes) {
      const auto pages = random_pages(random, shape, op, near.sizes(), sizes);
      Request request(*a, op, &ab, side_of(pages, true, SideShape::general_indexed, near.handles(), random),
                      side_of(pages, false, SideShape::general, handles_of(remotes), random), pages.size());
      const PostEnd end = request.run();
      ASSERT_TRUE(end.status.ok()) << code_name(end.status.code) << ": " << end.text;
      move_pages(pages, op, near.expected(), expected);
      ASSERT_TRUE(near.as_expected());
      for (std::size_t i = 0; i < facts.size(); ++i) ASSERT_EQ(b->hash(facts[i]), hash64(expected[i]));
      near.refill();
    }
  }
}

TEST_P(OwnerMoves, pages_that_are_grids_change_their_layout_on_the_way) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  // [6][5] runs of 96 bytes, transposed, with gaps on the owner's side; pages 4000 bytes apart there.
  constexpr std::uint64_t pages = 50, run = 96, page_bytes = 30 * run, apart = 4000;
  headrace_page_grid_v1 grid{};
  grid.dimensions = 2;
  grid.run_bytes = run;
  grid.runs = 30;
  grid.counts[0] = 6, grid.local_strides[0] = 5 * run, grid.remote_strides[0] = run;
  grid.counts[1] = 5, grid.local_strides[1] = run, grid.remote_strides[1] = 6 * run + 32;
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const bool indexed : {false, true}) {
      const Memory memory(Memory::Kind::plain, pages * page_bytes, 1);
      const Region mine(*a, memory);
      const RegionFacts facts = b->host_region(Memory::Kind::plain, pages * apart, 2);
      const Remote remote(ab, facts);
      Bytes theirs(pages * apart);
      fill_pattern(theirs, 2);
      Bytes ours(memory.bytes().begin(), memory.bytes().end());
      PageSide near = uniform_side(mine.handle(), 0, page_bytes, page_bytes),
               far = uniform_side(remote.handle(), 0, apart, page_bytes);
      std::vector<std::uint32_t> order(pages);
      std::iota(order.begin(), order.end(), 0U);
      if (indexed) {
        std::ranges::shuffle(order, random);
        far.indices = order;
      }
      for (std::uint64_t page = 0; page < pages; ++page)
        for (std::uint64_t i = 0; i < 6; ++i)
          for (std::uint64_t j = 0; j < 5; ++j) {
            std::byte* const here = &ours[page * page_bytes + (i * 5 + j) * run];
            std::byte* const there = &theirs[order[page] * apart + i * run + j * (6 * run + 32)];
            std::memcpy(op == HEADRACE_READ ? here : there, op == HEADRACE_READ ? there : here, run);
          }
      Request request(*a, op, &ab, near, far, pages, grid);
      const PostEnd end = request.run();
      ASSERT_TRUE(end.status.ok()) << code_name(end.status.code) << ": " << end.text;
      ASSERT_TRUE(same_bytes(memory.bytes(), std::span(ours)));
      ASSERT_EQ(b->hash(facts), hash64(theirs));
    }
  }
}

TEST_P(OwnerMoves, a_hundred_thousand_pages_are_told_once_and_move_at_each_post) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  constexpr std::uint32_t pages = 100'000, page_bytes = 97;
  const Memory memory(Memory::Kind::plain, pages * page_bytes, 1);
  const Region mine(*a, memory);
  const RegionFacts facts = b->host_region(Memory::Kind::plain, pages * page_bytes, 2);
  const Remote remote(ab, facts);
  PageSide near = uniform_side(mine.handle(), 0, page_bytes, page_bytes),
           far = uniform_side(remote.handle(), 0, page_bytes, page_bytes);
  near.indices.resize(pages);
  std::iota(near.indices.begin(), near.indices.end(), 0U);
  std::ranges::shuffle(near.indices, random);
  far.indices = near.indices;  // the same numbers on both sides: a copy, in another order
  Request request(*a, HEADRACE_WRITE, &ab, near, far, pages);
  for (std::uint64_t round = 0; round < 3; ++round) {
    fill_pattern(memory.bytes(), 40 + round);
    ASSERT_TRUE(request.run().status.ok());
    ASSERT_EQ(b->hash(facts), hash64(memory.bytes()));
  }
}

TEST_P(OwnerMoves, the_message_of_a_write_comes_after_its_bytes) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const RegionFacts facts = b->host_region(Memory::Kind::plain, 100'000, 1);
  b->ask(fmt::format("watch {}", facts.id));
  const Memory memory(Memory::Kind::plain, 100'000, 1);
  OnePage write(*a, ab, memory, facts, HEADRACE_WRITE);
  for (std::uint64_t i = 0; i < 20; ++i) {
    fill_pattern(memory.bytes(), 500 + i);
    write.request.post(std::to_string(i));
    ASSERT_TRUE(write.request.wait().status.ok());
    ASSERT_EQ(std::stoull(b->ask(fmt::format("await {}", i + 1))), i + 1);
    const auto words = words_of(b->ask(fmt::format("message {}", i)));
    ASSERT_EQ(std::stoull(words.at(1)), hash64(memory.bytes()))
        << "bytes were missing when message " << i << " came";
  }
}

TEST_P(OwnerMoves, posts_that_a_stopped_owner_has_not_begun_end_when_they_are_canceled) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const Memory memory(Memory::Kind::plain, 1000, 1);
  const RegionFacts facts = b->host_region(Memory::Kind::plain, 1000, 7);
  OnePage read(*a, ab, memory, facts, HEADRACE_READ);
  ASSERT_TRUE(read.request.run().status.ok());
  fill_pattern(memory.bytes(), 3);
  const Bytes before(memory.bytes().begin(), memory.bytes().end());
  b->signal(SIGSTOP);
  read.request.post();
  (void)world.progress();
  EXPECT_TRUE(read.request.in_flight());
  read.request.cancel();
  EXPECT_EQ(read.request.wait().status.code, Code::canceled);
  b->signal(SIGCONT);
  EXPECT_EQ(b->ask("lost 0"), "0");
  EXPECT_TRUE(same_bytes(memory.bytes(), std::span(before))) << "it was called off";
  ASSERT_TRUE(read.request.run().status.ok()) << "the next one is not";
  EXPECT_FALSE(same_bytes(memory.bytes(), std::span(before)));
}

TEST_P(OwnerMoves, a_killed_owner_ends_posts_that_it_had_begun_and_those_that_it_had_not) {
  const auto a = open();
  for (int life = 0; life < 6; ++life) {
    const auto b = start_peer();
    Link ab = connect(*a, *b);
    const Memory memory(Memory::Kind::plain, 100'000, 1);
    const RegionFacts facts = b->host_region(Memory::Kind::plain, 100'000, 7);
    OnePage first(*a, ab, memory, facts, HEADRACE_READ), second(*a, ab, memory, facts, HEADRACE_WRITE);
    if (life > 0) {
      ASSERT_TRUE(first.request.run().status.ok());
    }
    if (life > 1) b->ask("hold");
    const auto told = [&] { return std::stoi(b->ask("calls cuStreamWriteValue64")); };
    const int told_before = told();
    first.request.post("for nobody");
    second.request.post();
    for (int i = 0; i < life * 20; ++i) (void)world.progress();
    if (life > 3) {
      // Once the owner's GPU has begun, only its death ends it.
      ASSERT_TRUE(world.until([&] { return told() >= told_before + 2; }));
      first.request.cancel();
      EXPECT_TRUE(first.request.in_flight());
    }
    b->kill();
    for (OnePage* const page : {&first, &second}) {
      const PostEnd end = page->request.wait();
      // What the owner's GPU holds back cannot be done.
      EXPECT_TRUE(life > 1 ? one_of(end.status.code, {Code::peer_lost})
                           : one_of(end.status.code, {Code::ok, Code::peer_lost}))
          << end.text;
    }
    // Where both had ended well before, nobody has noticed yet.
    ASSERT_TRUE(world.until([&] { return ab.lost(); })) << world.describe();
    EXPECT_TRUE(one_of(first.request.try_post().code, {Code::peer_lost}));
  }
}

TEST_P(OwnerMoves, an_owner_that_finds_no_way_refuses_and_the_link_goes_on) {
  const auto a = open();
  const auto b = start_peer();
  const Link ab = connect(*a, *b);
  const Memory memory(Memory::Kind::plain, 1000, 1);
  const RegionFacts facts = b->host_region(Memory::Kind::plain, 1000, 7);
  b->ask("fail cuIpcOpenMemHandle");
  OnePage read(*a, ab, memory, facts, HEADRACE_READ);
  const PostEnd refused = read.request.run();
  EXPECT_EQ(refused.status.code, Code::not_supported);
  EXPECT_NE(refused.text.find("peer b says"), std::string::npos) << refused.text;
  const Memory in_pieces(Memory::Kind::shared, 1000, 1);
  OnePage other(*a, ab, in_pieces, facts, HEADRACE_READ);
  EXPECT_TRUE(other.request.run().status.ok());
}

// ------------------------------------------------------------------ two agents of one process

class OwnerMovesHere : public OverFakeGpus<Contract> {};
INSTANTIATE_TEST_SUITE_P(backend, OwnerMovesHere, testing::ValuesIn(vram_cases()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OwnerMovesHere);

/// A's GPU memory and b's registered host memory.
struct Ends {
  explicit Ends(Pair& pair, std::uint64_t bytes = 10'001)
      : near(Memory::Kind::plain, bytes, 1),
        far(host_memory(Memory::Kind::plain, bytes, 7, 5)),
        mine(*pair.a, near),
        theirs(std::make_unique<Region>(*pair.b, far)),
        pair_(pair) {}

  /// Of all of it, one page.
  [[nodiscard]] Request request(const Remote& remote, headrace_op_v1 op = HEADRACE_READ) const {
    const std::uint64_t bytes = near.bytes().size();
    return Request(*pair_.a, op, &pair_.ab, uniform_side(mine.handle(), 0, bytes, bytes),
                   uniform_side(remote.handle(), 0, bytes, bytes), 1);
  }

  Memory near, far;
  Region mine;
  std::unique_ptr<Region> theirs;

 private:
  Pair& pair_;
};

TEST_P(OwnerMovesHere, a_region_that_is_being_deregistered_is_held_until_its_gpu_has_ended) {
  Pair pair = open_pair();
  Ends ends(pair);
  const Remote remote(pair.ab, ends.theirs->facts());
  Request request = ends.request(remote);
  ASSERT_TRUE(request.run().status.ok());
  const int pinned = driver().live().pinned;
  driver().hold();
  request.post();
  const int begun = driver().calls("cuStreamWriteValue64");
  ASSERT_TRUE(world.until([&] { return driver().calls("cuStreamWriteValue64") > begun; }));
  WaitingCall deregisters([&] { ends.theirs->deregister(); });
  EXPECT_TRUE(deregisters.waits());
  EXPECT_EQ(driver().live().pinned, pinned);
  driver().release();
  deregisters.join();
  EXPECT_LT(driver().live().pinned, pinned);
  EXPECT_TRUE(one_of(request.wait().status.code, {Code::ok, Code::not_found}));
  EXPECT_EQ(request.run().status.code, Code::not_found);
}

TEST_P(OwnerMovesHere, the_owners_gpu_tells_the_end_though_none_of_its_threads_looks) {
  Pair pair = open_pair();
  Ends ends(pair);
  const Remote remote(pair.ab, ends.theirs->facts());
  Request request = ends.request(remote);
  for (int post = 0; post < 5; ++post) {
    driver().hold();
    const int calls = driver().calls("cuStreamWriteValue64");
    request.post();
    ASSERT_TRUE(world.until([&] { return driver().calls("cuStreamWriteValue64") >= calls + 2; }));
    driver().release();
    const Deadline soon = Deadline::after(std::chrono::seconds(30));
    while (request.in_flight() && soon.remaining_ns() > 0) (void)pair.a->progress();
    ASSERT_FALSE(request.in_flight());
  }
  EXPECT_TRUE(same_bytes(ends.near.bytes(), ends.far.bytes()));
}

// The host of a lets go of a region before its post has ended, which it must not: then the owner's look after
// the move finds a fault. The end word goes to the next request as soon as the post has ended, so it has to
// be written by then.
TEST_P(OwnerMovesHere, an_end_that_the_owners_gpu_tells_is_told_by_nobody_else) {
  Pair pair = open_pair();
  Ends ends(pair);
  const Remote remote(pair.ab, ends.theirs->facts());
  Request request = ends.request(remote);
  ASSERT_TRUE(request.run().status.ok());
  driver().hold();
  const int calls = driver().calls("cuStreamWriteValue64");
  request.post();
  ASSERT_TRUE(world.until([&] { return driver().calls("cuStreamWriteValue64") >= calls + 2; }));
  ends.mine.deregister();
  driver().step(2);  // the copy and the word by which the owner hears of its end, not the initiator's
  for (int look = 0; look < 1000; ++look) (void)world.progress();
  EXPECT_TRUE(request.in_flight());
  driver().release();
  EXPECT_TRUE(request.wait().status.ok());
}

TEST_P(OwnerMovesHere, an_owner_that_is_asked_for_what_was_called_off_looks_once) {
  Pair pair = open_pair();
  Ends ends(pair);
  const Remote remote(pair.ab, ends.theirs->facts());
  Request request = ends.request(remote);
  ASSERT_TRUE(request.run().status.ok());
  for (int post = 0; post < 3; ++post) {
    request.post();
    request.cancel();  // before the owner has heard of it
    EXPECT_EQ(request.wait().status.code, Code::canceled);
    int busy = 0;
    for (int look = 0; look < 1000; ++look) busy += pair.b->progress() > 0 ? 1 : 0;
    EXPECT_LT(busy, 10) << "it never sleeps";
  }
  ASSERT_TRUE(request.run().status.ok());
  EXPECT_TRUE(same_bytes(ends.near.bytes(), ends.far.bytes()));
}

TEST_P(OwnerMovesHere, posts_called_off_while_the_owner_is_stopped_are_not_told_one_by_one) {
  Pair pair = open_pair();
  Ends ends(pair);
  const Remote remote(pair.ab, ends.theirs->facts());
  Request request = ends.request(remote);
  ASSERT_TRUE(request.run().status.ok());
  for (int post = 0; post < 5000; ++post) {  // b does not read, and its socket holds some 300 packets
    request.post();
    request.cancel();
    for (int look = 0; request.in_flight() && look < 1000; ++look) (void)pair.a->progress();
    ASSERT_FALSE(request.in_flight());
  }
  std::uint32_t heard = 0;
  for (int look = 0; look < 10'000; ++look) {
    (void)pair.a->progress();
    heard += pair.b->progress();
  }
  EXPECT_LT(heard, 1000U);
  ASSERT_TRUE(request.run().status.ok());
  EXPECT_TRUE(same_bytes(ends.near.bytes(), ends.far.bytes()));
}

TEST_P(OwnerMovesHere, requests_that_come_and_go_while_the_owner_is_stopped_leave_nothing_behind) {
  Pair pair = open_pair();
  Ends ends(pair);
  const Remote remote(pair.ab, ends.theirs->facts());
  ASSERT_TRUE(ends.request(remote).run().status.ok());
  const std::size_t before = open_descriptors();
  for (int made = 0; made < 600; ++made) {
    {
      Request request = ends.request(remote);
      request.post();
      request.cancel();
      for (int look = 0; request.in_flight() && look < 1000; ++look) (void)pair.a->progress();
      ASSERT_FALSE(request.in_flight());
    }
    (void)pair.a->progress();
  }
  EXPECT_LT(open_descriptors(), before + 100);
  ASSERT_TRUE(ends.request(remote).run().status.ok());
  EXPECT_TRUE(same_bytes(ends.near.bytes(), ends.far.bytes()));
}

TEST_P(OwnerMovesHere, regions_that_the_peer_never_asked_for_go_without_a_word) {
  Pair pair = open_pair();
  Ends ends(pair);
  const Remote remote(pair.ab, ends.theirs->facts());
  ASSERT_TRUE(ends.request(remote).run().status.ok());
  const Memory memory(Memory::Kind::plain, 4096, 1);
  const auto things_told = [&](int regions) {
    for (int made = 0; made < regions; ++made) const Region passing(*pair.b, memory);
    std::uint32_t things = 0;
    for (int look = 0; look < 1000; ++look) things += pair.a->progress();
    return things;
  };
  (void)things_told(0);
  EXPECT_LT(things_told(200), 20U) << "a stopped peer would find a word for each of them";
  // One that was asked for does not: what the peer keeps of it goes.
  ends.theirs.reset();
  EXPECT_EQ(ends.request(remote).run().status.code, Code::not_found);
}

TEST_P(OwnerMovesHere, a_region_that_goes_before_its_owner_has_greeted_costs_its_requests_and_not_the_link) {
  const auto a = open("a"), b = open("b");
  const Memory near(Memory::Kind::plain, 1000, 1), far = host_memory(Memory::Kind::plain, 1000, 2),
                                                   kept = host_memory(Memory::Kind::plain, 1000, 3);
  const Region mine(*a, near), stays(*b, kept);
  Region goes(*b, far);
  // By then the peer's question is here, which came with its hello; the answer to that has not left.
  b->host().on_accepted = [&](const HostLink&) { std::thread([&] { goes.deregister(); }).join(); };
  const Link ab = a->connect(*b);
  const auto end_of = [&](const Region& theirs) {
    const Remote remote(ab, theirs.facts());
    Request request(*a, HEADRACE_READ, &ab, uniform_side(mine.handle(), 0, 1000, 1000),
                    uniform_side(remote.handle(), 0, 1000, 1000), 1);
    return request.run();
  };
  const PostEnd end = end_of(goes);
  EXPECT_EQ(end.status.code, Code::not_found) << end.text;
  EXPECT_FALSE(ab.lost()) << world.describe();
  const Link ba = accepted(*b, *a);
  EXPECT_TRUE(end_of(stays).status.ok());
  EXPECT_TRUE(same_bytes(near.bytes(), kept.bytes()));
}

TEST_P(OwnerMovesHere, read_only_memory_is_read_and_not_written) {
  Pair pair = open_pair();
  Ends ends(pair);
  ends.theirs = std::make_unique<Region>(*pair.b, ends.far, 0, 10'001, HEADRACE_REGION_READ_ONLY);
  const Remote remote(pair.ab, ends.theirs->facts());
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    Request request = ends.request(remote, op);
    EXPECT_EQ(request.run().status.code, op == HEADRACE_READ ? Code::ok : Code::invalid_argument);
  }
}

TEST_P(OwnerMovesHere, memory_that_may_not_be_pinned_moves_through_slots_that_are) {
  Settings settings = GetParam().settings;
  settings["staging_bytes"] = "64KiB";  // slots of 4 KiB
  Pair pair(world, table, settings);
  Arena near(*pair.a), far(*pair.b);
  near.add_mixed(3, 700'000);
  std::vector<Remote> remotes;
  {
    const FromTheHost here;
    for (int i = 0; i < 3; ++i) far.add(Memory::Kind::plain, 700'000, static_cast<std::size_t>(i));
  }
  // A part of each has a pin of its own, as another region in the same page has.
  std::vector<Region> parts;
  for (const Memory& memory : far.memories()) parts.emplace_back(*pair.b, memory, 0, 1000);
  const Memory small(Memory::Kind::plain, 1000, 1);
  const Region into(*pair.a, small);
  for (const Region& part : parts) {
    const Remote remote(pair.ab, part.facts());
    Request request(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(into.handle(), 0, 1000, 1000),
                    uniform_side(remote.handle(), 0, 1000, 1000), 1);
    ASSERT_TRUE(request.run().status.ok());
  }
  for (const Region& region : far.regions()) remotes.emplace_back(pair.ab, region.facts());
  const std::vector<RandomPages> shapes = {{.count = 1, .min_bytes = 1, .max_bytes = 1},
                                           {.count = 3000, .min_bytes = 1, .max_bytes = 300},
                                           {.count = 500, .min_bytes = 513, .max_bytes = 513},
                                           {.count = 4, .min_bytes = 100'000, .max_bytes = 150'000}};
  const int copies = driver().calls("cuMemHostAlloc");
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const RandomPages& shape : shapes) {
      const auto pages = random_pages(random, shape, op, near.sizes(), far.sizes());
      Request request(*pair.a, op, &pair.ab,
                      side_of(pages, true, SideShape::general_indexed, near.handles(), random),
                      side_of(pages, false, SideShape::general, handles_of(remotes), random), pages.size());
      const PostEnd end = request.run();
      ASSERT_TRUE(end.status.ok()) << code_name(end.status.code) << ": " << end.text;
      move_pages(pages, op, near.expected(), far.expected());
      ASSERT_TRUE(near.as_expected());
      ASSERT_TRUE(far.as_expected());
      near.refill();
      far.refill();
    }
  }
  EXPECT_GT(driver().calls("cuMemHostAlloc"), copies) << "slots were needed";
}

TEST_P(OwnerMovesHere, registered_host_memory_on_both_sides_is_refused) {
  Pair pair = open_pair();
  Ends ends(pair);
  const Memory host = host_memory(Memory::Kind::plain, 10'001, 3);
  const Region on_host(*pair.a, host);
  const Remote remote(pair.ab, ends.theirs->facts());
  PageSide near = uniform_side(ends.mine.handle(), 0, 0, 100), far = uniform_side(remote.handle(), 0, 0, 100);
  near.regions.push_back(on_host.handle());
  near.region_of = {0, 1};
  near.offsets = {0, 0};
  far.offsets = {0, 100};
  far.region_of = {0, 0};
  Request request(*pair.a, HEADRACE_WRITE, &pair.ab, near, far, 2);
  const PostEnd end = request.run();
  EXPECT_EQ(end.status.code, Code::not_supported);
  EXPECT_NE(end.text.find("both sides"), std::string::npos) << end.text;
}

/// What a hostile peer tells in its file, each a change of a good one, and how it is answered.
TEST_P(OwnerMovesHere, a_peer_that_tells_nonsense_is_answered_and_nothing_moves) {
  using cuda_ipc::ToldRegion;
  Pair pair = open_pair();
  Ends ends(pair);
  Ends others(pair);
  const Remote remote(pair.ab, ends.theirs->facts());
  {  // so that both sides know each other's regions
    Request request(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(ends.mine.handle(), 0, 1, 1),
                    uniform_side(remote.handle(), 0, 1, 1), 1);
    ASSERT_TRUE(request.run().status.ok());
  }
  const Bytes near(ends.near.bytes().begin(), ends.near.bytes().end()),
      far(ends.far.bytes().begin(), ends.far.bytes().end());
  auto& link = *cuda_ipc::Handles::link(pair.ab.connection());
  const std::uint32_t far_id = ends.theirs->id(), near_id = ends.mine.id();
  struct Case {
    const char* name;
    Code code;
    PageSide near, far;
    ToldRegion told_near, told_far;
    std::uint64_t count;
  };
  const ToldRegion good_near{near_id, HEADRACE_VRAM, 10'001, 0}, good_far{far_id, HEADRACE_DRAM, 10'001, 0};
  void* const any = &link;  // handles are told, not followed
  const auto side = [&](std::uint64_t base, std::uint64_t stride, std::uint64_t bytes) {
    return uniform_side(any, base, stride, bytes);
  };
  PageSide wild = side(0, UINT64_MAX / 2, 100), far_index = side(0, 100, 100), no_region = side(0, 100, 100);
  wild.indices = {2, 3};
  far_index.indices = {0, UINT32_MAX};
  no_region.region_of = {0, 7};
  no_region.offsets = {0, 100};
  const std::vector<Case> cases = {
      {"a page behind our region", Code::invalid_argument, side(0, 1, 100), side(9950, 1, 100), good_near,
       good_far, 1},
      {"a page behind theirs", Code::invalid_argument, side(9950, 1, 100), side(0, 1, 100), good_near,
       good_far, 1},
      {"sums that overflow", Code::invalid_argument, side(0, 1, 100), side(UINT64_MAX - 50, 1, 100),
       good_near, good_far, 1},
      {"products that overflow", Code::invalid_argument, side(0, 100, 100), wild, good_near, good_far, 2},
      {"indices that lead away", Code::invalid_argument, side(0, 100, 100), far_index, good_near, good_far,
       2},
      {"numbers of regions that are not there", Code::invalid_argument, side(0, 100, 100), no_region,
       good_near, good_far, 2},
      {"a region that was never registered",
       Code::not_found,
       side(0, 1, 100),
       side(0, 1, 100),
       good_near,
       {99, HEADRACE_DRAM, 10'001, 0},
       1},
      {"a region of its own that it does not have",
       Code::not_found,
       side(0, 1, 100),
       side(0, 1, 100),
       {99, HEADRACE_VRAM, 10'001, 0},
       good_far,
       1},
      {"a region of its own that is shorter",
       Code::corrupt,
       side(10'100, 1, 100),
       side(0, 1, 100),
       {near_id, HEADRACE_VRAM, 1 << 20, 0},
       good_far,
       1},
      {"too many pages", Code::corrupt, side(0, 0, 100), side(0, 0, 100), good_near, good_far, 1},
  };
  for (const Case& which : cases) {
    SCOPED_TRACE(which.name);
    const headrace_side_v1 local = which.near.view(), remote_side = which.far.view();
    headrace_prepare_v1 args{};
    args.struct_size = sizeof args;
    args.op = HEADRACE_WRITE;
    args.count = which.count;
    args.local = &local;
    args.remote = &remote_side;
    auto file = cuda_ipc::write_move_file(
        args, [&](void*) { return which.told_near; }, [&](void*) { return which.told_far; });
    ASSERT_TRUE(file);
    if (which.name == std::string_view("too many pages")) {
      const std::uint64_t count = UINT64_MAX / 3;
      ASSERT_EQ(::pwrite(file->descriptor.get(), &count, sizeof count, cuda_ipc::move_control_bytes + 8), 8);
    }
    const std::uint32_t number = link.tell_move(std::move(file->descriptor), cuda_ipc::no_end_word);
    for (std::uint64_t post = 1; post <= 2; ++post) {
      file->control.ask(post);
      link.tell_go(number);
      ASSERT_TRUE(world.until([&] { return file->control.has_ended(post); })) << world.describe();
      EXPECT_EQ(file->control.outcome(post).status.code, which.code) << file->control.outcome(post).text;
    }
    link.tell_drop(number);
  }
  for (int round = 0; round < 300; ++round) {  // a good one with bytes changed
    const headrace_side_v1 local = far_index.view(), remote_side = far_index.view();
    headrace_prepare_v1 args{};
    args.struct_size = sizeof args;
    args.op = HEADRACE_WRITE;
    args.count = 2;
    args.local = &local;
    args.remote = &remote_side;
    auto file = cuda_ipc::write_move_file(
        args, [&](void*) { return good_near; }, [&](void*) { return good_far; });
    ASSERT_TRUE(file);
    for (int change = 0; change < 3; ++change) {
      const char byte = static_cast<char>(random());
      ASSERT_EQ(::pwrite(file->descriptor.get(), &byte, 1,
                         static_cast<off_t>(cuda_ipc::move_control_bytes + random() % 136)),
                1);
    }
    const std::uint32_t number = link.tell_move(std::move(file->descriptor), cuda_ipc::no_end_word);
    file->control.ask(1);
    link.tell_go(number);
    ASSERT_TRUE(world.until([&] { return file->control.has_ended(1); })) << world.describe();
    EXPECT_FALSE(file->control.outcome(1).status.ok()) << "index " << UINT32_MAX << " lies nowhere";
    link.tell_drop(number);
  }
  link.tell_go(123'456);  // of requests that are not there nothing is said
  link.tell_drop(123'456);
  EXPECT_TRUE(same_bytes(ends.near.bytes(), std::span(near)));
  EXPECT_TRUE(same_bytes(ends.far.bytes(), std::span(far)));
  Request request = ends.request(remote);
  EXPECT_TRUE(request.run().status.ok()) << "the link goes on";
  EXPECT_TRUE(same_bytes(ends.near.bytes(), ends.far.bytes()));
}

TEST_P(OwnerMovesHere, a_file_that_cannot_be_answered_in_ends_the_link) {
  for (const bool could_shrink : {true, false}) {
    Pair pair = open_pair();
    auto file = host_link::create_memory_file("nonsense", could_shrink ? 1 << 20 : 100).value();
    if (!could_shrink) {
      ASSERT_TRUE(host_link::seal_memory_file(file.get(), F_SEAL_SHRINK));
    }
    (void)cuda_ipc::Handles::link(pair.ab.connection())->tell_move(std::move(file), 0);
    ASSERT_TRUE(world.until([&] { return pair.ba.lost(); })) << world.describe();
    EXPECT_EQ(pair.b->host().link(pair.ba.token())->lost_status.code, Code::corrupt);
  }
}

TEST_P(OwnerMovesHere, posts_end_when_either_side_closes_the_link) {
  for (const bool owner_closes : {true, false}) {
    for (const bool begun : {true, false}) {
      SCOPED_TRACE(testing::Message() << owner_closes << begun);
      Pair pair = open_pair();
      Ends ends(pair);
      const Remote remote(pair.ab, ends.theirs->facts());
      Request request = ends.request(remote);
      ASSERT_TRUE(request.run().status.ok());
      driver().hold();
      const int calls = driver().calls("cuStreamWriteValue64");
      request.post();
      if (begun) {
        ASSERT_TRUE(world.until([&] { return driver().calls("cuStreamWriteValue64") > calls; }));
      }
      world.start_driver();
      WaitingCall closes([&] { (owner_closes ? pair.ba : pair.ab).disconnect(); });
      const bool waits = closes.waits();
      EXPECT_TRUE(!begun || (waits && request.in_flight())) << "the owner's GPU may still write";
      driver().release();
      closes.join();
      const PostEnd end = request.wait();
      EXPECT_TRUE(one_of(end.status.code, {Code::ok, Code::canceled, Code::peer_lost})) << end.text;
      world.stop_driver();
    }
  }
}

TEST_P(OwnerMovesHere, what_was_prepared_is_given_back_with_the_request) {
  Pair pair = open_pair();
  const cuda::FakeCuda::Live before = driver().live();
  // The ring of each side's courier, which stays as long as its GPU.
  const int rings = GetParam().settings.contains("courier") ? 2 : 0;
  {
    Ends ends(pair);
    const Remote remote(pair.ab, ends.theirs->facts());
    for (int i = 0; i < 50; ++i) {
      Request request = ends.request(remote);
      ASSERT_TRUE(request.run().status.ok());
    }
    EXPECT_TRUE(world.until([&] { return driver().live().pinned <= before.pinned + rings + 3; }))
        << driver().live().pinned << " of " << before.pinned;
  }
  EXPECT_TRUE(
      world.until([&] { return driver().live().pinned <= before.pinned + rings + 2; }));  // tables are kept
}

}  // namespace
}  // namespace headrace::contract
