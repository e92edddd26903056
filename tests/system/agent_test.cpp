// SPDX-License-Identifier: Apache-2.0
// The promises of an agent, over every backend.
#include "two_agents.hpp"

#include "support/child_ending.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>

namespace headrace::test {
namespace {

class OverBackend : public ::testing::TestWithParam<std::string> {
 protected:
  /// Memory that outlives the agents, because registered memory must stay valid until it is deregistered.
  std::vector<std::byte>& memory(std::size_t bytes, std::uint64_t seed) {
    return kept_.emplace_back(random_bytes(bytes, seed));
  }

  std::deque<std::vector<std::byte>> kept_;
  TwoAgents agents{GetParam()};

  Region share(Agent& owner, std::vector<std::byte>& bytes, const std::string& name = {}) {
    RegisterOptions options;
    options.name = name;
    return must(owner.register_memory({bytes.data(), bytes.size()}, options));
  }
  void storm_of_cancels(int posts);
};

TEST(AllBackends, are_those_that_carry_host_memory_between_agents) {
  std::vector<std::string> names;
  for (const BackendInfo& info : must(list_backends({{"backends", "fake"}}))) {
    const auto takes = [&](MemoryKind kind) {
      return std::find(info.kinds.begin(), info.kinds.end(), kind) != info.kinds.end();
    };
    // A backend of GPUs moves host memory only to and from GPUs. The example is for the contract suite.
    const bool carries = info.loaded && info.remote && takes(MemoryKind::dram) && !takes(MemoryKind::vram);
    if (carries && info.name != "minimal") names.push_back(info.name);
  }
  EXPECT_EQ(names, all_backends());
}

INSTANTIATE_TEST_SUITE_P(Backends, OverBackend, ::testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend.param; });

TEST_P(OverBackend, pages_of_odd_sizes_and_offsets_move_both_ways) {
  constexpr std::size_t size = 1 << 20;
  auto& ours = memory(size, 1);
  auto& theirs = memory(size, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  std::mt19937_64 random(run_seed() + 3);
  for (const Op op : {Op::read, Op::write}) {
    auto expect_ours = ours;
    auto expect_theirs = theirs;
    std::vector<Page> local, remote;
    std::size_t at = 0;
    while (at + 20000 < size) {
      const std::size_t length = 1 + random() % 9000;
      local.push_back({mine.id.value, at, length});
      remote.push_back({far.id.value, size - at - length, length});
      if (op == Op::read) std::memcpy(expect_ours.data() + at, theirs.data() + size - at - length, length);
      if (op == Op::write) std::memcpy(expect_theirs.data() + size - at - length, ours.data() + at, length);
      at += length + random() % 777;
    }
    std::vector<std::uint32_t> order(local.size());
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random);
    Request request = must(
        agents.here.make_request(op, {must(agents.here.prepare(local)),
                                      must(agents.here.prepare(agents.there.name(), remote)), order, order}));
    ASSERT_TRUE(request.post().ok()) << request.error().message;
    ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
    EXPECT_EQ(request.state(), RequestState::done);
    EXPECT_TRUE(ours == expect_ours);
    EXPECT_TRUE(theirs == expect_theirs);
    EXPECT_EQ(request.backend(), GetParam());
    EXPECT_NE(request.explain().find(GetParam()), std::string::npos) << request.explain();
    EXPECT_EQ(request.times().pages, local.size());
    EXPECT_GT(request.times().transfer_ns, 0u);
  }
}

TEST_P(OverBackend, a_counter_reaches_the_number_of_writes_when_all_their_bytes_are_there) {
  constexpr std::size_t threads = 4, posts = 250, page = 4096;
  auto& ours = memory(threads * page, 1);
  auto& theirs = memory(threads * page, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  const Immediate immediate{7, 3};
  const Counter counter = must(agents.there.counter(immediate));
  EXPECT_EQ(counter.wait(1, std::chrono::nanoseconds(0)).code, Code::timed_out);
  std::vector<std::jthread> writers;
  for (std::size_t t = 0; t < threads; ++t)
    writers.emplace_back([&, t] {
      const std::vector<Page> from{{mine.id.value, t * page, page}}, to{{far.id.value, t * page, page}};
      Request request = must(agents.here.make_request(
          Op::write,
          {must(agents.here.prepare(from)), must(agents.here.prepare(agents.there.name(), to)), {}, {}}));
      PostOptions options;
      options.immediate = immediate;
      for (std::size_t i = 1; i <= posts; ++i) {
        std::memset(ours.data() + t * page, static_cast<int>(i), page);
        Status posted;
        while ((posted = request.post(options)).code == Code::would_block) (void)request.poll();
        ASSERT_TRUE(posted.ok()) << request.error().message;
        ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
      }
    });
  ASSERT_TRUE(counter.wait(threads * posts, patience).ok()) << counter.value();
  EXPECT_EQ(theirs, std::vector<std::byte>(threads * page, static_cast<std::byte>(posts)));
  writers.clear();
  EXPECT_EQ(counter.value(), threads * posts);
  EXPECT_EQ(must(agents.there.counter({7, 4})).value(), 0U);
  EXPECT_EQ(must(agents.here.counter(immediate)).value(), 0U);
}

TEST_P(OverBackend, a_counter_counts_reads_and_posts_of_its_own_agent) {
  auto& ours = memory(8192, 1);
  auto& theirs = memory(8192, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  PostOptions options;
  options.immediate = Immediate{1, 0};
  options.notification = "with it";
  const Counter there = must(agents.there.counter({1, 0})), here = must(agents.here.counter({1, 0}));
  std::atomic<int> reached{0};
  there.on_reached(1, [&] { ++reached; });
  const int fd = must(there.event_fd(1));
  const std::vector<Page> first{{mine.id.value, 0, 4096}}, second{{mine.id.value, 4096, 4096}},
      remote{{far.id.value, 0, 4096}};
  (void)must(agents.here.read(agents.there.name(), first, remote, options));
  EXPECT_TRUE(there.wait(1, patience).ok());
  pollfd readable{fd, POLLIN, 0};
  EXPECT_EQ(::poll(&readable, 1, 30'000), 1);
  ::close(fd);
  EXPECT_EQ(must(agents.there.wait_notification(patience)).payload, "with it");
  while (reached == 0) std::this_thread::yield();
  EXPECT_EQ(here.value(), 0U);
  (void)must(agents.here.write(agents.here.name(), first, second, options));
  EXPECT_TRUE(here.wait(1, patience).ok());
  EXPECT_EQ(there.value(), 1U);
  EXPECT_EQ(reached, 1);
}

TEST_P(OverBackend, pages_that_are_views_change_their_layout_during_a_move) {
  // A cache of ours, [2, blocks, tokens, 3 of 7 heads, dim], and one of theirs, [2, blocks, 7 heads, tokens,
  // dim].
  constexpr std::int64_t blocks = 11, tokens = 5, heads = 3, their_heads = 7, first = 2, dim = 24, item = 2;
  constexpr std::int64_t our_token = heads * dim * item, our_block = tokens * our_token;
  constexpr std::int64_t their_head = tokens * dim * item, their_block = their_heads * their_head;
  constexpr std::int64_t base = 13;
  auto& ours = memory(base + 2 * blocks * our_block, 1);
  auto& theirs = memory(2 * blocks * their_block, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  const PageView here{{2, tokens, heads, dim}, {blocks * our_block, our_token, dim * item, item}, item};
  const PageView there{{2, tokens, heads, dim}, {blocks * their_block, dim * item, their_head, item}, item};
  const PageList local =
      must(agents.here.prepare(PageSpec(UniformPages{mine.id, base, our_block, 0, blocks}, here)));
  const PageList remote = must(
      agents.here.prepare(agents.there.name(),
                          PageSpec(UniformPages{far.id, first * their_head, their_block, 0, blocks}, there)));
  EXPECT_EQ(local.bytes(), static_cast<std::uint64_t>(blocks * 2 * tokens * heads * dim * item));
  const std::vector<std::uint32_t> to{3, 0, 10, 7}, from{1, 10, 5, 0};
  for (const Op op : {Op::read, Op::write}) {
    auto expect_ours = ours;
    auto expect_theirs = theirs;
    for (std::size_t i = 0; i < to.size(); ++i)
      for (std::int64_t kv = 0; kv < 2; ++kv)
        for (std::int64_t token = 0; token < tokens; ++token)
          for (std::int64_t head = 0; head < heads; ++head) {
            const auto at =
                base + kv * blocks * our_block + to[i] * our_block + token * our_token + head * dim * item;
            const auto far_at = kv * blocks * their_block + from[i] * their_block +
                                (first + head) * their_head + token * dim * item;
            if (op == Op::read)
              std::memcpy(&expect_ours[static_cast<std::size_t>(at)],
                          &theirs[static_cast<std::size_t>(far_at)], dim * item);
            if (op == Op::write)
              std::memcpy(&expect_theirs[static_cast<std::size_t>(far_at)],
                          &ours[static_cast<std::size_t>(at)], dim * item);
          }
    Request request = must(agents.here.make_request(op, {local, remote, to, from}));
    for (int post = 0; post < 2; ++post) {
      ASSERT_TRUE(request.post().ok()) << request.error().message;
      ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
    }
    EXPECT_TRUE(ours == expect_ours);
    EXPECT_TRUE(theirs == expect_theirs);
    EXPECT_EQ(request.backend(), GetParam());
    if (op == Op::read) std::reverse(ours.begin(), ours.end());
  }
}

TEST_P(OverBackend, ten_million_pages_in_any_order_arrive_slow) {
  constexpr std::size_t count = 10'000'000, page = 12;
  auto& ours = memory(count * page, 5);
  auto& theirs = memory(count * page, 6);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  std::vector<std::uint32_t> to(count), from(count);
  std::iota(to.begin(), to.end(), 0u);
  std::iota(from.begin(), from.end(), 0u);
  std::mt19937_64 random(run_seed());
  std::shuffle(to.begin(), to.end(), random);
  std::shuffle(from.begin(), from.end(), random);
  auto expected = ours;
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(expected.data() + to[i] * page, theirs.data() + from[i] * page, page);
  const PageList local = must(agents.here.prepare(UniformPages{mine.id, 0, 0, page, count}));
  const PageList remote =
      must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, page, count}));
  Request request = must(agents.here.make_request(Op::read, {local, remote, to, from}));
  ASSERT_TRUE(request.post().ok()) << request.error().message;
  ASSERT_TRUE(request.wait(std::chrono::minutes(10)).ok()) << request.error().message;
  EXPECT_TRUE(ours == expected);
  EXPECT_EQ(request.times().pages, count);
}

TEST_P(OverBackend, pages_by_columns_of_addresses_arrive) {
  constexpr std::size_t count = 300, page = 96;
  auto& ours = memory(count * page, 3);
  auto& theirs = memory(count * page, 4);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  struct Row {
    std::uint64_t theirs, length, ours;
  };
  std::vector<Row> rows(count);
  auto expected = ours;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t to = i * 7 % count * page, from = (count - 1 - i) * page, length = 1 + i % page;
    rows[i] = {far.address + from, length, mine.address + to};
    std::memcpy(expected.data() + to, theirs.data() + from, length);
  }
  const PageColumn lengths{&rows[0].length, sizeof(Row)};
  const PageList local = must(
      agents.here.prepare(RegionPages{mine.id, {&rows[0].ours, sizeof(Row)}, lengths, count, mine.address}));
  const PageList remote = must(agents.here.prepare(
      agents.there.name(), RegionPages{far.id, {&rows[0].theirs, sizeof(Row)}, lengths, count, far.address}));
  EXPECT_EQ(remote.peer(), agents.there.name());
  rows.clear();
  Request request = must(agents.here.make_request(Op::read, {local, remote}));
  ASSERT_TRUE(request.post().ok()) << request.error().message;
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  EXPECT_TRUE(ours == expected);
}

TEST_P(OverBackend, a_request_can_be_posted_again_and_again) {
  auto& ours = memory(4096 * 16, 1);
  auto& theirs = memory(4096 * 16, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  const PageList local = must(agents.here.prepare(UniformPages{mine.id, 0, 0, 4096, 16}));
  const PageList remote =
      must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, 4096, 16}));
  Request request = must(agents.here.make_request(Op::read, {local, remote}));
  for (int round = 0; round < 100; ++round) {
    theirs[static_cast<std::size_t>(round) * 600] ^= std::byte{0xff};
    ASSERT_TRUE(request.post({"taken", {}}).ok());
    ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
    // The owner may change the bytes after it knows that they were read.
    ASSERT_EQ(must(agents.there.wait_notification(patience)).payload, "taken");
    ASSERT_TRUE(ours == theirs) << round;
  }
  EXPECT_EQ(request.times().posts, 100u);
}

TEST_P(OverBackend, one_call_moves_pages_of_every_form) {
  constexpr std::uint64_t page = 3000, count = 20;
  auto& ours = memory(page * count, 1);
  auto& theirs = memory(page * count, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  const std::string& peer = agents.there.name();
  const std::array<Page, 2> rows{{{far.id.value, 5 * page, page}, {far.id.value, 0, page}}};
  const std::vector<AddressPage> places{{mine.address + 7 * page, page}, {mine.address, page}};
  auto expected = ours;
  std::memcpy(expected.data() + 7 * page, theirs.data() + 5 * page, page);
  std::memcpy(expected.data(), theirs.data(), page);
  const Request read =
      must(agents.here.read(peer, places, rows, {.notification = "read", .timeout = patience}));
  EXPECT_TRUE(ours == expected);
  EXPECT_EQ(read.state(), RequestState::done);
  EXPECT_EQ(must(agents.there.wait_notification(patience)).payload, "read");
  const UniformPages all{mine.id, 0, 0, page, count};
  must(agents.here.write(peer, all, UniformPages{far.id, 0, 0, page, count}, {.timeout = patience}));
  EXPECT_TRUE(theirs == ours);
  theirs[page * 3] ^= std::byte{0xff};
  Request posted = must(agents.here.post(Op::read, peer, all, UniformPages{far.id, 0, 0, page, count}));
  ASSERT_TRUE(posted.wait(patience).ok()) << posted.error().message;
  EXPECT_TRUE(theirs == ours);
}

TEST_P(OverBackend, one_call_that_fails_says_why) {
  auto& ours = memory(4096, 1);
  const Region mine = share(agents.here, ours);
  agents.meet();
  const UniformPages page{mine.id, 0, 0, 4096, 1};
  EXPECT_EQ(agents.here.read("nobody", page, page).code(), Code::not_found);
  const auto no_region = agents.here.read(agents.there.name(), page, UniformPages{{99}, 0, 0, 4096, 1});
  ASSERT_EQ(no_region.code(), Code::not_found);
  EXPECT_NE(no_region.error().message.find("has no region 99"), std::string::npos);
  const std::vector<AddressPage> places{{mine.address, 4096}};
  const auto by_address = agents.here.read(agents.there.name(), page, places);
  ASSERT_EQ(by_address.code(), Code::invalid_argument);
  EXPECT_NE(by_address.error().message.find("valid in the peer's process only"), std::string::npos);
}

TEST_P(OverBackend, a_notification_comes_after_the_bytes_of_its_request) {
  auto& ours = memory(300000, 1);
  auto& theirs = memory(300000, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  const PageList local = must(agents.here.prepare(UniformPages{mine.id, 0, 0, 300000, 1}));
  const PageList remote =
      must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, 300000, 1}));
  Request request = must(agents.here.make_request(Op::write, {local, remote}));
  for (int round = 0; round < 20; ++round) {
    const auto fresh = random_bytes(300000, 100u + static_cast<unsigned>(round));
    std::copy(fresh.begin(), fresh.end(), ours.begin());
    ASSERT_TRUE(request.post({"round " + std::to_string(round), {}}).ok());
    const Notification n = must(agents.there.wait_notification(patience));
    EXPECT_EQ(n.peer, agents.here.name());
    EXPECT_EQ(n.payload, "round " + std::to_string(round));
    EXPECT_TRUE(theirs == fresh);
    ASSERT_TRUE(request.wait(patience).ok());
  }
  EXPECT_TRUE(must(agents.there.take_notifications()).empty()) << "each notification is delivered once";
}

TEST_P(OverBackend, notifications_without_a_request_keep_their_order_and_are_filtered_by_prefix) {
  agents.meet();
  for (int i = 0; i < 500; ++i) {
    const std::string text = (i % 2 == 0 ? "even " : "odd ") + std::to_string(i);
    Result<void> sent = agents.here.notify(agents.there.name(), text);
    while (sent.code() == Code::would_block) {
      (void)agents.there.take_notifications({.peer = "nobody", .prefix = {}});
      sent = agents.here.notify(agents.there.name(), text);
    }
    must(sent);
  }
  for (int i = 1; i < 500; i += 2)
    EXPECT_EQ(must(agents.there.wait_notification(patience, {.peer = {}, .prefix = "odd"})).payload,
              "odd " + std::to_string(i));
  for (int i = 0; i < 500; i += 2)
    EXPECT_EQ(must(agents.there.wait_notification(patience)).payload, "even " + std::to_string(i));
  EXPECT_EQ(agents.there.wait_notification(std::chrono::milliseconds(1)).code(), Code::timed_out);
}

TEST_P(OverBackend, an_agent_moves_pages_to_itself) {
  auto& bytes = memory(65536, 4);
  const Region region = share(agents.here, bytes);
  const PageList local = must(agents.here.prepare(UniformPages{region.id, 0, 0, 1024, 32}));
  const PageList remote =
      must(agents.here.prepare(agents.here.name(), UniformPages{region.id, 32768, 0, 1024, 32}));
  Request request = must(agents.here.make_request(Op::write, {local, remote}));
  ASSERT_TRUE(request.post({"to myself", {}}).ok());
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  EXPECT_EQ(std::memcmp(bytes.data(), bytes.data() + 32768, 32768), 0);
  const std::vector<Notification> told = must(agents.here.take_notifications());
  ASSERT_EQ(told.size(), 1U) << "the notification has arrived when the request is done";
  EXPECT_EQ(told[0].peer, agents.here.name());
  EXPECT_EQ(told[0].payload, "to myself");
}

TEST_P(OverBackend, allocated_memory_is_moved_as_other_memory) {
  const Region mine = must(agents.here.allocate(1 << 20));
  const Region far = must(agents.there.allocate(1 << 20));
  agents.meet();
  const auto data = random_bytes(1 << 20, 9);
  std::memcpy(far.bytes().data(), data.data(), data.size());
  // The thread sanitizer sees no order through a socket. This registration orders the fill before the sends
  // of the owner's threads.
  share(agents.there, memory(1, 1));
  Request request = must(agents.here.make_request(
      Op::read, {must(agents.here.prepare(UniformPages{mine.id, 0, 0, 4096, 256})),
                 must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, 4096, 256}))}));
  ASSERT_TRUE(request.post().ok());
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  EXPECT_EQ(std::memcmp(mine.bytes().data(), data.data(), data.size()), 0);
}

TEST_P(OverBackend, pages_by_address_are_found_in_their_regions) {
  auto& ours = memory(10000, 1);
  auto& more = memory(10000, 5);
  auto& theirs = memory(20000, 2);
  share(agents.here, ours);
  share(agents.here, more);
  const Region far = share(agents.there, theirs);
  agents.meet();
  const std::vector<AddressPage> local{{reinterpret_cast<std::uint64_t>(ours.data()) + 17, 101},
                                       {reinterpret_cast<std::uint64_t>(more.data()), 10000}};
  const std::vector<Page> remote{{far.id.value, 3, 101}, {far.id.value, 10000, 10000}};
  Request request = must(agents.here.make_request(
      Op::read, {must(agents.here.prepare(local)), must(agents.here.prepare(agents.there.name(), remote))}));
  ASSERT_TRUE(request.post().ok());
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  EXPECT_EQ(std::memcmp(ours.data() + 17, theirs.data() + 3, 101), 0);
  EXPECT_EQ(std::memcmp(more.data(), theirs.data() + 10000, 10000), 0);

  const std::vector<AddressPage> outside{{reinterpret_cast<std::uint64_t>(ours.data()), 5},
                                         {reinterpret_cast<std::uint64_t>(ours.data()) + 9000, 1001}};
  const auto refused = agents.here.prepare(outside);
  EXPECT_EQ(refused.code(), Code::not_found);
  EXPECT_EQ(refused.error().page, 1u);
}

TEST_P(OverBackend, addresses_without_memory_are_not_registered) {
  constexpr std::size_t page = 4096;
  // Far below the addresses that the system chooses first, so that no other thread gets memory in the hole.
  void* const below = reinterpret_cast<void*>(0x7e9000000000);
  auto* const room = static_cast<std::byte*>(
      ::mmap(below, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(room, MAP_FAILED);
  ::munmap(room + 2 * page, page);
  const std::vector<MemoryRange> ranges{
      {room, page}, {room + page, page}, {room + 2 * page, 100}, {room + 3 * page, page}};
  const auto refused = agents.here.register_memory(ranges);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_EQ(refused.error().page, 2U) << refused.error().message;
  EXPECT_EQ(agents.here.register_memory({room + page, page + 1}).code(), Code::invalid_argument)
      << "the last byte has no memory";
  EXPECT_TRUE(agents.here.register_memory({room + 17, 2 * page - 17}).ok());
  EXPECT_TRUE(agents.here.regions().size() == 1);
  must(agents.here.deregister(agents.here.regions().front().id));
  ::munmap(room, 4 * page);
}

TEST_P(OverBackend, a_region_registered_read_only_is_read_and_not_written) {
  auto& ours = memory(8192, 1);
  auto& theirs = memory(8192, 2);
  const Region mine =
      must(agents.here.register_memory({.address = ours.data(), .length_bytes = 8192, .writable = false}));
  const Region far =
      must(agents.there.register_memory({.address = theirs.data(), .length_bytes = 8192, .writable = false}));
  auto& free = memory(8192, 3);
  const Region open = share(agents.here, free);
  agents.meet();
  EXPECT_FALSE(mine.writable);
  EXPECT_FALSE(must(agents.here.peer_regions(agents.there.name())).front().writable)
      << "the flag is in the metadata";
  const auto pages = [](const Region& region, std::uint64_t count) {
    return UniformPages{region.id, 0, 0, 512, count};
  };
  const std::string peer = agents.there.name();

  const auto refused = agents.here.make_request(
      Op::write, {must(agents.here.prepare(pages(open, 4))), must(agents.here.prepare(peer, pages(far, 4)))});
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_EQ(refused.error().page, 0U);
  EXPECT_NE(refused.error().message.find("registered read-only"), std::string::npos)
      << refused.error().message;
  const std::vector<Page> mixed{{open.id.value, 0, 512}, {mine.id.value, 0, 512}};
  const auto here = agents.here.make_request(
      Op::read, {must(agents.here.prepare(mixed)), must(agents.here.prepare(peer, pages(far, 2)))});
  EXPECT_EQ(here.code(), Code::invalid_argument);
  EXPECT_EQ(here.error().page, 1U) << here.error().message;

  Request read = must(agents.here.make_request(
      Op::read, {must(agents.here.prepare(pages(open, 4))), must(agents.here.prepare(peer, pages(far, 4)))}));
  ASSERT_TRUE(read.post().ok());
  EXPECT_TRUE(read.wait(patience).ok()) << read.error().message;
  EXPECT_EQ(std::memcmp(free.data(), theirs.data(), 2048), 0);
}

TEST_P(OverBackend, memory_allocated_read_only_is_filled_by_its_owner_and_read_by_peers) {
  const Region far = must(agents.there.allocate(100'000, {.writable = false}));
  const auto data = random_bytes(100'000, 5);
  std::memcpy(far.bytes().data(), data.data(), data.size());
  auto& ours = memory(100'000, 6);
  const Region mine = share(agents.here, ours);
  share(agents.there, memory(1, 1));  // orders the fill, as above
  agents.meet();
  const std::vector<Page> local{{mine.id.value, 0, 100'000}}, remote{{far.id.value, 0, 100'000}};
  Request read = must(agents.here.make_request(
      Op::read, {must(agents.here.prepare(local)), must(agents.here.prepare(agents.there.name(), remote))}));
  ASSERT_TRUE(read.post().ok());
  ASSERT_TRUE(read.wait(patience).ok()) << read.error().message;
  EXPECT_TRUE(ours == data);
  if (GetParam() == "tcp") {
    EXPECT_EQ(agents.here.map(agents.there.name(), far.id, patience).code(), Code::not_supported);
    return;
  }
  const Mapping mapped = must(agents.here.map(agents.there.name(), far.id, patience));
  EXPECT_FALSE(mapped.writable());
  EXPECT_EQ(std::memcmp(mapped.bytes().data(), data.data(), data.size()), 0);
  EXPECT_DEATH_IF_SUPPORTED(mapped.bytes()[0] = std::byte{1}, "") << "a write must end in a fault";
}

/// Without fake, which copies by memcpy in the initiator's thread: a copy into memory that cannot be written
/// would end that thread.
class OverFaultlessBackend : public OverBackend {
 public:
  static std::vector<std::string> backends() {
    std::vector<std::string> names = all_backends();
    std::erase(names, "fake");
    return names;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, OverFaultlessBackend,
                         ::testing::ValuesIn(OverFaultlessBackend::backends()),
                         [](const auto& backend) { return backend.param; });

TEST_P(OverFaultlessBackend, a_write_into_read_only_memory_fails_and_its_owner_survives) {
  constexpr std::size_t size = 1 << 20;
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const Region far = must(agents.there.register_memory({mapped, size}));
  auto& ours = memory(size, 21);
  const Region mine = share(agents.here, ours);
  agents.meet();
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{5000}, size}) {
    const std::vector<Page> local{{mine.id.value, 0, bytes}}, remote{{far.id.value, 0, bytes}};
    Request write =
        must(agents.here.make_request(Op::write, {must(agents.here.prepare(local)),
                                                  must(agents.here.prepare(agents.there.name(), remote))}));
    (void)write.post();
    EXPECT_EQ(write.wait(patience).code, Code::backend_failed) << write.error().message;
    if (GetParam() == "tcp") {
      EXPECT_NE(write.error().message.find("read-only"), std::string::npos) << write.error().message;
    }
    Request read =
        must(agents.here.make_request(Op::read, {must(agents.here.prepare(local)),
                                                 must(agents.here.prepare(agents.there.name(), remote))}));
    ASSERT_TRUE(read.post().ok()) << read.error().message;
    EXPECT_TRUE(read.wait(patience).ok()) << "the link must stay usable: " << read.error().message;
  }
  must(agents.there.deregister(far.id));
  ::munmap(mapped, size);
}

TEST_P(OverBackend, deregistering_removes_a_region_from_the_peer_and_keeps_the_others) {
  auto& ours = memory(8192, 1);
  auto& theirs = memory(4096, 2);
  auto& others = memory(4096, 3);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs, "going");
  const Region other = share(agents.there, others, "staying");
  agents.meet();
  const PageList local = must(agents.here.prepare(UniformPages{mine.id, 0, 0, 4096, 1}));
  Request going = must(agents.here.make_request(
      Op::read,
      {local, must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, 4096, 1}))}));
  Request staying = must(agents.here.make_request(
      Op::read,
      {local, must(agents.here.prepare(agents.there.name(), UniformPages{other.id, 0, 0, 4096, 1}))}));
  ASSERT_TRUE(going.post().ok());
  ASSERT_TRUE(going.wait(patience).ok()) << going.error().message;
  must(agents.there.deregister(far.id, patience));
  Status status = going.post();
  if (status.ok()) status = going.wait(patience);
  EXPECT_EQ(status.code, Code::not_found) << going.error().message;
  EXPECT_GT(must(going.cost()).duration.count(), 0) << "a cost for a region that is gone";
  EXPECT_EQ(agents.here.peer_region(agents.there.name(), "going").code(), Code::not_found);
  EXPECT_EQ(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, 4096, 1}).code(),
            Code::not_found);
  ASSERT_TRUE(staying.post().ok());
  EXPECT_TRUE(staying.wait(patience).ok()) << staying.error().message;
  EXPECT_EQ(agents.there.deregister(far.id).code(), Code::not_found);
  must(agents.here.deregister(mine.id, patience));
  EXPECT_GT(must(staying.cost()).duration.count(), 0) << "a cost for our own region that is gone";
}

TEST_P(OverBackend, an_update_adds_new_regions_and_removes_revoked_ones) {
  auto& first = memory(4096, 1);
  auto& second = memory(4096, 2);
  const Region one = share(agents.there, first, "one");
  const ImportReport whole = must(agents.here.import_metadata(must(agents.there.export_metadata())));
  EXPECT_EQ(whole.regions, 1u);
  share(agents.there, second, "two");
  must(agents.there.deregister(one.id));
  ExportOptions update;
  update.since_version = whole.version;
  const ImportReport updated = must(agents.here.import_metadata(must(agents.there.export_metadata(update))));
  EXPECT_EQ(updated.regions, 1u);
  EXPECT_FALSE(updated.restarted);
  EXPECT_EQ(agents.here.peer_region(agents.there.name(), "one").code(), Code::not_found);
  EXPECT_TRUE(agents.here.peer_region(agents.there.name(), "two").ok());
}

TEST_P(OverBackend, partial_metadata_names_only_the_given_regions) {
  auto& bytes = memory(8192, 1);
  const Region one = must(agents.there.register_memory(
      {bytes.data(), 4096}, {.name = "one", .note = "f32", .backends = {}, .keep_alive = {}}));
  must(agents.there.register_memory({bytes.data() + 4096, 4096}));
  ExportOptions part;
  part.regions = {one.id};
  must(agents.here.import_metadata(must(agents.there.export_metadata(part))));
  const auto regions = must(agents.here.peer_regions(agents.there.name()));
  ASSERT_EQ(regions.size(), 1u);
  EXPECT_EQ(regions[0].name, "one");
  EXPECT_EQ(regions[0].note, "f32");
  EXPECT_EQ(regions[0].length_bytes, 4096u);
}

TEST_P(OverBackend, connect_returns_when_the_link_is_ready) {
  agents.meet();
  must(agents.here.connect(agents.there.name(), patience));
  EXPECT_TRUE(agents.here.peers().at(0).connected);
  EXPECT_EQ(agents.here.connect("nobody").code(), Code::not_found);
  const auto unknown = agents.here.connect(agents.there.name(), patience, {"no_such"});
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("no_such: not open in this agent"), std::string::npos)
      << unknown.error().message;
}

TEST_P(OverBackend, a_callback_an_eventfd_and_the_telemetry_report_the_completion) {
  auto& ours = memory(4096, 1);
  auto& theirs = memory(4096, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  Request request = must(agents.here.make_request(
      Op::read, {must(agents.here.prepare(UniformPages{mine.id, 0, 0, 4096, 1})),
                 must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, 4096, 1}))}));
  std::mutex mutex;
  std::condition_variable told;
  std::optional<Status> heard;
  request.on_done([&](Status status) {
    const std::lock_guard lock(mutex);
    heard = status;
    told.notify_all();
  });
  const int fd = must(request.event_fd());
  ASSERT_TRUE(request.post().ok());
  pollfd ready{fd, POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 30000), 1);
  std::unique_lock lock(mutex);
  ASSERT_TRUE(told.wait_for(lock, patience, [&] { return heard.has_value(); }));
  EXPECT_TRUE(heard->ok());
  EXPECT_EQ(agents.here.telemetry().counters.at("requests.read_bytes"), 4096u);
}

TEST_P(OverBackend, forgetting_a_peer_makes_its_requests_fail_with_peer_lost) {
  auto& ours = memory(4096, 1);
  auto& theirs = memory(4096, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  Request request = must(agents.here.make_request(
      Op::read, {must(agents.here.prepare(UniformPages{mine.id, 0, 0, 4096, 1})),
                 must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, 4096, 1}))}));
  ASSERT_TRUE(request.post().ok());
  ASSERT_TRUE(request.wait(patience).ok());
  must(agents.here.forget(agents.there.name()));
  Status status = request.post();
  if (status.ok()) status = request.wait(patience);
  EXPECT_EQ(status.code, Code::peer_lost);
  EXPECT_NE(request.error().message.find(agents.there.name()), std::string::npos) << request.error().message;
  agents.meet();
  EXPECT_TRUE(agents.here.connect(agents.there.name(), patience).ok());
}

TEST_P(OverBackend, a_peer_that_restarts_under_its_name_is_another_incarnation) {
  auto& ours = memory(4096, 1);
  auto& theirs = memory(4096, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  const PageList local = must(agents.here.prepare(UniformPages{mine.id, 0, 0, 4096, 1}));
  Request old = must(agents.here.make_request(
      Op::read,
      {local, must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, 4096, 1}))}));
  ASSERT_TRUE(old.post().ok());
  ASSERT_TRUE(old.wait(patience).ok());

  const std::string name = agents.there.name();
  agents.there =
      must(Agent::open(unique_name("between"), {{GetParam()}, "", "", {}}));  // the old agent is closed here
  Agent again = must(Agent::open(name, {{GetParam()}, "", "", {}}));
  auto& fresh = memory(4096, 7);
  const Region fresh_region = share(again, fresh);
  const ImportReport report = must(agents.here.import_metadata(must(again.export_metadata())));
  EXPECT_TRUE(report.restarted);

  Status status = old.post();
  if (status.ok()) status = old.wait(patience);
  EXPECT_EQ(status.code, Code::peer_lost);
  EXPECT_NE(old.error().message.find(name), std::string::npos) << old.error().message;

  Request renewed = must(agents.here.make_request(
      Op::read, {local, must(agents.here.prepare(name, UniformPages{fresh_region.id, 0, 0, 4096, 1}))}));
  ASSERT_TRUE(renewed.post().ok());
  ASSERT_TRUE(renewed.wait(patience).ok()) << renewed.error().message;
  EXPECT_TRUE(ours == fresh);
}

TEST_P(OverBackend, eight_threads_use_one_agent_at_once) {
  constexpr std::size_t each = 64 * 1024;
  auto& ours = memory(8 * each, 1);
  auto& theirs = memory(8 * each, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const PageList local = must(agents.here.prepare(UniformPages{mine.id, t * each, 0, 1024, 64}));
      const PageList remote =
          must(agents.here.prepare(agents.there.name(), UniformPages{far.id, t * each, 0, 1024, 64}));
      for (int round = 0; round < 30; ++round) {
        Request request =
            must(agents.here.make_request(round % 2 == 0 ? Op::read : Op::write, {local, remote}));
        ASSERT_TRUE(request.post().ok());
        ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(ours == theirs);
}

TEST_P(OverBackend, wrong_requests_are_refused_with_advice) {
  auto& ours = memory(8192, 1);
  auto& theirs = memory(8192, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  const std::string peer = agents.there.name();

  RegisterOptions latin1;
  latin1.name = "caf\xe9";
  EXPECT_EQ(agents.here.register_memory({ours.data(), ours.size()}, latin1).code(), Code::invalid_argument);
  EXPECT_EQ(Agent::open("caf\xe9").code(), Code::invalid_argument);

  const std::vector<Page> zero{{far.id.value, 0, 4}, {far.id.value, 4, 0}};
  auto refused = agents.here.prepare(peer, zero);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_EQ(refused.error().page, 1u);
  const std::vector<Page> beyond{{far.id.value, 8190, 3}};
  EXPECT_EQ(agents.here.prepare(peer, beyond).code(), Code::invalid_argument);
  const std::vector<Page> overflow{{far.id.value, ~0ull - 1, 3}};
  EXPECT_EQ(agents.here.prepare(peer, overflow).code(), Code::invalid_argument);
  const std::vector<Page> unknown{{far.id.value + 77, 0, 3}};
  EXPECT_EQ(agents.here.prepare(peer, unknown).code(), Code::not_found);
  EXPECT_EQ(agents.here.prepare("nobody", beyond).code(), Code::not_found);
  EXPECT_EQ(agents.here.prepare(peer, UniformPages{far.id, 0, 1ull << 62, 4096, 5}).code(),
            Code::invalid_argument);
  EXPECT_EQ(agents.here.prepare(UniformPages{mine.id, 0, 0, 0, 5}).code(), Code::invalid_argument);

  const std::vector<std::uint64_t> places{0, 8190, 4}, sizes{4, 3, 0};
  const auto by_columns = [&](RegionId region, std::uint64_t count, std::uint64_t origin) {
    return RegionPages{region, {places.data()}, {sizes.data()}, count, origin};
  };
  EXPECT_EQ(must(agents.here.prepare(by_columns(mine.id, 1, 0))).bytes(), 4u);
  EXPECT_EQ(must(agents.here.prepare(agents.here.name(), by_columns(mine.id, 1, 0))).peer(),
            agents.here.name());
  auto over = agents.here.prepare(peer, by_columns(far.id, 3, 0));
  EXPECT_EQ(over.code(), Code::invalid_argument);
  EXPECT_EQ(over.error().page, 1u);
  EXPECT_NE(over.error().message.find("runs over the end"), std::string::npos) << over.error().message;
  auto before = agents.here.prepare(by_columns(mine.id, 3, 1));
  EXPECT_EQ(before.code(), Code::invalid_argument);
  EXPECT_EQ(before.error().page, 0u);
  auto empty = agents.here.prepare(RegionPages{mine.id, {places.data()}, {&sizes[2], 0}, 1});
  EXPECT_EQ(empty.code(), Code::invalid_argument);
  EXPECT_NE(empty.error().message.find("length 0"), std::string::npos) << empty.error().message;
  EXPECT_EQ(agents.here.prepare(by_columns(mine.id, 0, 0)).code(), Code::invalid_argument);
  EXPECT_EQ(agents.here.prepare(RegionPages{mine.id, {}, {sizes.data()}, 1}).code(), Code::invalid_argument);
  EXPECT_EQ(agents.here.prepare(RegionPages{mine.id, {places.data()}, {}, 1}).code(), Code::invalid_argument);
  EXPECT_EQ(agents.here.prepare(by_columns(RegionId{mine.id.value + 77}, 1, 0)).code(), Code::not_found);
  EXPECT_EQ(agents.here.prepare(peer, by_columns(RegionId{far.id.value + 77}, 1, 0)).code(), Code::not_found);
  EXPECT_EQ(agents.here.prepare("nobody", by_columns(far.id, 1, 0)).code(), Code::not_found);
  EXPECT_EQ(agents.here.prepare(std::span<const Page>{}).code(), Code::invalid_argument);

  const PageList two = must(agents.here.prepare(UniformPages{mine.id, 0, 0, 4096, 2}));
  const PageList one = must(agents.here.prepare(peer, UniformPages{far.id, 0, 0, 4096, 1}));
  const PageList small = must(agents.here.prepare(peer, UniformPages{far.id, 0, 0, 2048, 2}));
  EXPECT_EQ(agents.here.make_request(Op::read, {two, one}).code(), Code::invalid_argument);
  const auto lengths = agents.here.make_request(Op::read, {two, small});
  EXPECT_EQ(lengths.code(), Code::invalid_argument);
  EXPECT_EQ(lengths.error().page, 0u);
  const std::vector<std::int64_t> bad{0, -1};
  const auto index = agents.here.make_request(Op::read, {two, small, bad, bad});
  EXPECT_EQ(index.code(), Code::invalid_argument);
  EXPECT_EQ(index.error().page, 1u);
  EXPECT_EQ(agents.here.make_request(Op::read, {one, two}).code(), Code::invalid_argument)
      << "the sides are exchanged";
  EXPECT_EQ(agents.here.make_request(Op::read, {two, two}).code(), Code::invalid_argument);
  EXPECT_EQ(agents.here.notify("nobody", "x").code(), Code::not_found);
  EXPECT_EQ(agents.here.notify(peer, std::string(65537, 'x')).code(), Code::invalid_argument);
  EXPECT_EQ(agents.here.register_memory({nullptr, 5}).code(), Code::invalid_argument);
  EXPECT_EQ(agents.here.register_memory({ours.data(), 0}).code(), Code::invalid_argument);

  std::string bytes = must(agents.there.export_metadata());
  EXPECT_EQ(agents.here.import_metadata(std::string_view(bytes).substr(0, bytes.size() / 2)).code(),
            Code::corrupt);
  bytes[bytes.size() / 2] ^= 1;
  EXPECT_EQ(agents.here.import_metadata(bytes).code(), Code::corrupt);
  EXPECT_EQ(agents.here.import_metadata(must(agents.here.export_metadata())).code(), Code::invalid_argument)
      << "a list of our own as the remote side";
}

TEST_P(OverBackend, overlapping_sources_are_legal_and_overlapping_destinations_refused_when_checked) {
  TwoAgents checked(GetParam(), {{"check", "yes"}});
  auto& ours = memory(8192, 1);
  auto& theirs = memory(8192, 2);
  const Region mine = must(checked.here.register_memory({ours.data(), ours.size()}));
  const Region far = must(checked.there.register_memory({theirs.data(), theirs.size()}));
  checked.meet();
  const std::vector<Page> apart{{mine.id.value, 0, 4096}, {mine.id.value, 4096, 4096}};
  const std::vector<Page> overlapping{{far.id.value, 0, 4096}, {far.id.value, 4095, 4096}};
  const PageList local = must(checked.here.prepare(apart));
  const PageList remote = must(checked.here.prepare(checked.there.name(), overlapping));
  Request request = must(checked.here.make_request(Op::read, {local, remote}));
  ASSERT_TRUE(request.post().ok());
  EXPECT_TRUE(request.wait(patience).ok());
  const auto refused = checked.here.make_request(Op::write, {local, remote});
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_EQ(refused.error().page, 1u);
}

/// The cancels come from another thread at any moment of a post, also before the backend has the whole post.
void OverBackend::storm_of_cancels(int posts) {
  constexpr std::size_t size = 8 << 20, page = 64 << 10;
  auto& ours = memory(size, 61);
  auto& theirs = memory(size, 62);
  TwoAgents slow(GetParam(), slow_enough_to_cancel(GetParam()));
  const Region mine = share(slow.here, ours);
  const Region far = share(slow.there, theirs);
  slow.meet();
  const PageList local = must(slow.here.prepare(UniformPages{mine.id, 0, 0, page, size / page}));
  const PageList remote =
      must(slow.here.prepare(slow.there.name(), UniformPages{far.id, 0, 0, page, size / page}));
  Request request = must(slow.here.make_request(Op::read, {local, remote}));
  const auto told = std::make_shared<std::atomic<std::uint64_t>>(0);
  request.on_done([told](Status) { ++*told; });
  Canceler canceler(request);
  int canceled = 0;
  for (int i = 0; i < posts || canceled < posts / 20; ++i) {
    ASSERT_LT(i, 10 * posts) << canceled << " posts were canceled";
    canceler.post_comes();
    const Status status = request.post();
    ASSERT_TRUE(status.ok() || status.code == Code::canceled) << request.error().message;
    const Status ended = request.wait(patience);
    ASSERT_TRUE(ended.ok() || ended.code == Code::canceled) << request.error().message;
    ASSERT_EQ(request.state(), ended.ok() ? RequestState::done : RequestState::canceled);
    ASSERT_TRUE(!ended.ok() || std::memcmp(ours.data(), theirs.data(), size) == 0);
    if (!ended.ok()) ++canceled;
    std::memset(ours.data(), 0, ours.size());
  }
  canceler.stop();
  ASSERT_TRUE(request.post().ok()) << request.error().message;
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  EXPECT_TRUE(ours == theirs);
  // Callbacks run in the order of the completions: after that of the last post there is no other one.
  const std::uint64_t all = request.times().posts;
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (*told < all && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  EXPECT_EQ(*told, all) << "each post has one completion";
}

TEST_P(OverBackend, a_storm_of_cancels_ends_every_post_once_and_leaves_nothing_behind) {
  storm_of_cancels(100);
}
TEST_P(OverBackend, a_storm_of_cancels_ends_every_post_once_and_leaves_nothing_behind_many_rounds) {
  storm_of_cancels(400);
}

TEST_P(OverBackend, dropping_the_last_handle_or_closing_the_agent_ends_requests_in_flight) {
  auto& ours = memory(8 << 20, 1);
  auto& theirs = memory(8 << 20, 2);
  const Region mine = share(agents.here, ours);
  const Region far = share(agents.there, theirs);
  agents.meet();
  const PageList local = must(agents.here.prepare(UniformPages{mine.id, 0, 0, 4096, 2048}));
  const PageList remote =
      must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, 4096, 2048}));
  const auto ends = std::make_shared<std::atomic<int>>(0);
  for (int i = 0; i < 5; ++i) {
    Request dropped = must(agents.here.make_request(Op::read, {local, remote}));
    dropped.on_done([ends](Status) { ++*ends; });
    ASSERT_TRUE(dropped.post().ok());
  }
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (*ends < 5 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  EXPECT_EQ(*ends, 5) << "the callbacks of requests without handles run";
  // The request may end before the agent is closed: then again.
  bool canceled = false;
  for (int i = 0; i < 200 && !canceled; ++i) {
    TwoAgents passing(GetParam());
    const Region near = share(passing.here, ours), there = share(passing.there, theirs);
    passing.meet();
    Request kept = must(passing.here.make_request(
        Op::read,
        {must(passing.here.prepare(UniformPages{near.id, 0, 0, 4096, 2048})),
         must(passing.here.prepare(passing.there.name(), UniformPages{there.id, 0, 0, 4096, 2048}))}));
    ASSERT_TRUE(kept.post().ok());
    passing.here = must(Agent::open(unique_name("next"), {{GetParam()}, "", "", {}}));
    EXPECT_TRUE(kept.state() == RequestState::done || kept.state() == RequestState::canceled);
    EXPECT_EQ(kept.post().code, Code::invalid_argument) << "the agent of the request is closed";
    canceled = kept.state() == RequestState::canceled;
  }
  EXPECT_TRUE(canceled) << "no request was in flight when its agent was closed";
}

/// The backend drops every post, so each is in flight until it is canceled.
TEST(AgentOverFake, dropping_the_last_handle_or_closing_the_agent_cancels_a_request_in_flight) {
  std::vector<std::byte> ours(4096), theirs(4096);
  TwoAgents agents("fake", {{"fake.faults", "drop"}});
  const Region mine = must(agents.here.register_memory({ours.data(), ours.size()}));
  const Region far = must(agents.there.register_memory({theirs.data(), theirs.size()}));
  agents.meet();
  std::vector<pollfd> ends;  // copies of the eventfds, which outlive the requests
  const auto post = [&] {
    Request request = must(agents.here.make_request(
        Op::read, {must(agents.here.prepare(UniformPages{mine.id, 0, 0, 4096, 1})),
                   must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, 4096, 1}))}));
    ends.push_back({::dup(must(request.event_fd())), POLLIN, 0});
    EXPECT_TRUE(request.post().ok());
    return request;
  };
  const Request kept = post();
  (void)post();
  EXPECT_EQ(::poll(&ends[1], 1, 30'000), 1) << "the request without a handle";
  EXPECT_EQ(::poll(ends.data(), 1, 0), 0);
  EXPECT_EQ(kept.state(), RequestState::posted);
  agents.here = must(Agent::open(unique_name("next"), {{"fake"}, "", "", {}}));
  EXPECT_EQ(kept.state(), RequestState::canceled);
  EXPECT_EQ(::poll(ends.data(), 1, 0), 1);
  for (const pollfd& end : ends) ::close(end.fd);
}

TEST_P(OverBackend, the_agent_of_a_forked_child_returns_invalid_argument) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = agents.here.export_metadata().code() == Code::invalid_argument &&
                         agents.here.notify("x", "y").code() == Code::invalid_argument;
    ::_exit(refused ? 0 : 1);
  }
  EXPECT_TRUE(ends_well(child));
}

/// A child that destroys its copies of the request and the agents, and then stays until the last writer of
/// `pipe` has closed.
pid_t forked(TwoAgents& agents, Request& request, const std::array<int, 2>& pipe) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::alarm(60);
  ::close(pipe[1]);
  request.cancel();
  {
    const Agent first = std::move(agents.here), second = std::move(agents.there);
    const Request copy = std::move(request);  // destroyed first
  }
  char nothing = 0;
  ::_exit(::read(pipe[0], &nothing, 1) == 0 ? 0 : 1);
}

TEST_P(OverBackend, posts_in_flight_survive_a_fork_whose_child_destroys_its_requests_and_agents) {
  constexpr std::size_t size = 8 << 20, page = 64 << 10;
  auto &ours = memory(size, 1), &theirs = memory(size, 2);
  const Region near = share(agents.here, ours), far = share(agents.there, theirs);
  agents.meet();
  Request request = must(agents.here.make_request(
      Op::read,
      {must(agents.here.prepare(UniformPages{near.id, 0, 0, page, size / page})),
       must(agents.here.prepare(agents.there.name(), UniformPages{far.id, 0, 0, page, size / page}))}));
  std::atomic<int> told{0};  // the callback thread sets it; the child does not have that thread
  request.on_done([&](Status) {
    ++told;
    told.notify_all();
  });
  for (int round = 0; round < 4; ++round) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    std::ranges::copy(random_bytes(size, 10 + static_cast<std::uint64_t>(round)), theirs.begin());
    ASSERT_TRUE(request.post().ok());
    const pid_t child = forked(agents, request, pipe);
    ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
    told.wait(round);
    EXPECT_TRUE(ours == theirs);
    must(agents.here.notify(agents.there.name(), "still here"));
    EXPECT_EQ(must(agents.there.wait_notification(patience)).payload, "still here");
    for (const int end : pipe) ::close(end);
    EXPECT_TRUE(ends_well(child));
  }
  TwoAgents others(GetParam());
  must(others.here.import_metadata(must(agents.there.export_metadata())));
  must(others.here.connect(agents.there.name(), patience));
}

TEST_P(OverBackend, memory_is_mapped_if_the_backend_supports_mappings) {
  const Region far = must(agents.there.allocate(100000));
  agents.meet();
  auto mapped = agents.here.map(agents.there.name(), far.id, patience);
  const bool supported = agents.here.backends().at(0).mapping;
  ASSERT_EQ(supported, GetParam() != "tcp");
  if (!supported) {
    EXPECT_EQ(mapped.code(), Code::not_supported);
    return;
  }
  Mapping mapping = must(std::move(mapped));
  ASSERT_EQ(mapping.bytes().size(), 100000u);
  far.bytes()[99999] = std::byte{42};
  EXPECT_EQ(mapping.bytes()[99999], std::byte{42});
  EXPECT_TRUE(mapping.alive());
  must(agents.there.deregister(far.id, patience));
  EXPECT_FALSE(mapping.alive());
  (void)mapping.bytes()[0];  // gives the old bytes and never faults
}

TEST(Agent, an_invalid_name_option_or_backend_is_refused) {
  EXPECT_EQ(Agent::open("").code(), Code::invalid_argument);
  EXPECT_EQ(Agent::open(std::string(256, 'x')).code(), Code::invalid_argument);
  const auto option = Agent::open("x", {{}, "", "", {{"inbox_capasity", "3"}}});
  EXPECT_EQ(option.code(), Code::invalid_argument);
  EXPECT_NE(option.error().message.find("inbox_capacity"), std::string::npos) << option.error().message;
  EXPECT_EQ(Agent::open("x", {{}, "", "", {{"nosuch.thing", "3"}}}).code(), Code::invalid_argument);
  const auto backend = Agent::open("x", {{"nosuch"}, "", "", {}});
  EXPECT_EQ(backend.code(), Code::backend_failed);
  EXPECT_NE(backend.error().message.find("there is no backend"), std::string::npos)
      << backend.error().message;
}

MemoryRange kept(MemoryKind kind, const std::string& path) {
  MemoryRange range;
  range.kind = kind;
  range.path = path;
  return range;
}

TEST_P(OverBackend, a_query_is_answered_or_refused_with_the_name_of_the_backend) {
  const std::string& backend = GetParam();
  const auto answer = agents.here.query(kept(MemoryKind::object, "no such key"), backend);
  if (backend == "fake") {
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_FALSE(answer->has_value());
  } else {
    EXPECT_EQ(answer.code(), Code::not_supported);
    const std::string& text = answer.error().message;
    EXPECT_NE(text.find("query of object no such key: backend " + backend + " keeps no files"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("headrace plugins"), std::string::npos) << text;
  }
  EXPECT_EQ(agents.here.query(kept(MemoryKind::dram, ""), backend).code(), Code::invalid_argument);
  const auto nobody = agents.here.query(kept(MemoryKind::file, "x"), "no_such");
  EXPECT_EQ(nobody.code(), Code::not_found);
  EXPECT_NE(nobody.error().message.find("which has " + backend), std::string::npos) << nobody.error().message;
}

TEST(AgentQuery, a_query_finds_the_objects_that_a_backend_keeps) {
  Agent agent = must(
      Agent::open(unique_name("asks"), {{"shm", "fake"}, "", "", {{"fake.objects", "kv/7=4096, empty=0"}}}));
  const auto found = must(agent.query(kept(MemoryKind::object, "kv/7"), "fake"));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(*found, (std::map<std::string, std::string>{{"bytes", "4096"}, {"key", "kv/7"}}));
  EXPECT_EQ(must(agent.query(kept(MemoryKind::object, "empty"), "fake"))->at("bytes"), "0");
  EXPECT_FALSE(must(agent.query(kept(MemoryKind::object, "kv"), "fake")).has_value());
  EXPECT_EQ(agent.query(kept(MemoryKind::file, "kv/7"), "fake").code(), Code::not_supported);
  EXPECT_EQ(agent.query(kept(MemoryKind::object, ""), "fake").code(), Code::invalid_argument);
  const auto refused = agent.query(kept(MemoryKind::object, "kv/7"), "shm");
  EXPECT_EQ(refused.code(), Code::not_supported);
  EXPECT_NE(refused.error().message.find("ask fake"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace headrace::test
