// SPDX-License-Identifier: Apache-2.0
// Immediates: each post is counted once, in rounds, whenever it is expected.
#include "fabric/expectations.hpp"
#include "unit/fabric/two_fabrics.hpp"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <map>
#include <stdexcept>
#include <thread>

namespace headrace::test_fabric {
namespace {

using fabric::Callbacks;
using fabric::Expectations;

struct Table {
  std::shared_ptr<Callbacks> callbacks = std::make_shared<Callbacks>();
  std::shared_ptr<Expectations> all =
      std::make_shared<Expectations>(callbacks, std::make_shared<const ForkGuard>());
};

TEST(FabricExpectations, what_came_before_counts_and_what_exceeds_stays_for_the_next_round) {
  Table table;
  table.all->arrived({1, 0}, 5);
  const auto expectation = value_of(table.all->expect({1, 0}, 3));
  EXPECT_TRUE(expectation->wait(0ns).ok());
  EXPECT_EQ(expectation->wait(0ns).code, Code::timed_out);
  EXPECT_EQ(expectation->rounds().load(), 1U);
  table.all->arrived({1, 0}, 7);  // 2 + 7 = 3 rounds
  EXPECT_EQ(expectation->rounds().load(), 4U);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(expectation->wait(0ns).ok());
  EXPECT_EQ(expectation->wait(0ns).code, Code::timed_out);
}

TEST(FabricExpectations, scopes_have_counts_of_their_own) {
  Table table;
  const auto one = value_of(table.all->expect({1, 10}, 1));
  const auto other = value_of(table.all->expect({1, 11}, 1));
  table.all->arrived({1, 11}, 1);
  EXPECT_EQ(one->rounds().load(), 0U);
  EXPECT_EQ(other->rounds().load(), 1U);
}

TEST(FabricExpectations, remove_tells_what_had_come_and_ends_the_waits) {
  Table table;
  const auto expectation = value_of(table.all->expect({4, 0}, 8));
  table.all->arrived({4, 0}, 11);
  EXPECT_EQ(table.all->expect({4, 0}, 2).code(), Code::invalid_argument) << "expected twice";
  EXPECT_EQ(expectation->take_remover()(), 3U);
  EXPECT_EQ(expectation->take_remover(), nullptr);
  EXPECT_TRUE(expectation->wait(0ns).ok()) << "the round that was full";
  EXPECT_EQ(expectation->wait(long_enough).code, Code::canceled);
  table.all->arrived({4, 0}, 2);
  EXPECT_TRUE(value_of(table.all->expect({4, 0}, 2))->wait(0ns).ok()) << "they were kept";
}

TEST(FabricExpectations, a_callback_is_called_for_each_round_until_it_declines) {
  Table table;
  const auto expectation = value_of(table.all->expect({1, 0}, 2));
  int calls = 0;
  table.all->arrived({1, 0}, 4);  // two rounds before it is there
  expectation->on_reached([&] { return ++calls < 3; });
  table.all->arrived({1, 0}, 8);
  table.callbacks->close();
  EXPECT_EQ(calls, 3);
}

TEST(FabricExpectations, a_callback_that_throws_is_told_and_called_again) {
  Table table;
  int calls = 0;
  std::vector<std::string> errors;
  table.callbacks->on_error([&](const Error& error) { errors.push_back(error.message); });
  const auto expectation = value_of(table.all->expect({1, 0}, 1));
  expectation->on_reached([&]() -> bool {
    if (++calls == 1) throw std::runtime_error("the first call");
    return true;
  });
  table.all->arrived({1, 0}, 2);
  table.callbacks->close();
  EXPECT_EQ(calls, 2);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_NE(errors[0].find("the first call"), std::string::npos);
  EXPECT_EQ(table.callbacks->failed(), 1U);
}

TEST(FabricExpectations, the_eventfd_grows_by_one_with_each_round) {
  Table table;
  const auto expectation = value_of(table.all->expect({1, 0}, 2));
  table.all->arrived({1, 0}, 2);
  const int bell = value_of(expectation->event_fd());
  table.all->arrived({1, 0}, 5);
  std::uint64_t rounds = 0;
  ASSERT_EQ(::read(bell, &rounds, sizeof rounds), static_cast<ssize_t>(sizeof rounds));
  EXPECT_EQ(rounds, 3U);
  table.all->close();
  pollfd waited{bell, POLLIN, 0};
  EXPECT_EQ(::poll(&waited, 1, 0), 1) << "it tells that the fabric was closed";
}

TEST(FabricExpectations, unexpected_ones_are_kept_up_to_a_bound_and_losses_are_counted) {
  Table table;
  for (std::uint32_t i = 0; i < Expectations::most_unexpected + 5; ++i) table.all->arrived({i, 0}, 2);
  EXPECT_EQ(table.all->lost(), 10U);
  table.all->arrived({3, 0}, 1);  // a known one still counts
  EXPECT_EQ(value_of(table.all->expect({3, 0}, 3))->rounds().load(), 1U);
  table.all->arrived({UINT32_MAX, 0}, 1);  // and there is room for one more
  EXPECT_EQ(table.all->lost(), 10U);
}

TEST(FabricExpectations, unexpected_ones_leave_room_for_those_of_barriers) {
  Table table;
  for (std::uint32_t i = 0; i < Expectations::most_unexpected; ++i) table.all->arrived({i, 0}, 1);
  const Immediate at{7, Expectations::barrier_scope};
  table.all->arrived(at, 1);
  EXPECT_EQ(table.all->lost(), 0U);
  bool served = false;
  static_cast<void>(value_of(table.all->take(at, 1, [&] { served = true; })));
  EXPECT_TRUE(served) << "the barrier would wait for ever";
  table.all->arrived({UINT32_MAX, 0}, 1);
  EXPECT_EQ(table.all->lost(), 1U);
}

TEST(FabricExpectations, unexpected_ones_go_to_the_callback_with_their_sum) {
  Table table;
  std::map<std::uint32_t, std::uint64_t> told;
  table.all->arrived({1, 0}, 2);
  table.all->on_unexpected([&](Immediate at, std::uint64_t amount) { told[at.value] += amount; });
  table.all->arrived({1, 0}, 1);
  table.all->arrived({2, 0}, 4);
  const auto expected = value_of(table.all->expect({3, 0}, 1));
  table.all->arrived({3, 0}, 1);
  table.callbacks->close();
  EXPECT_EQ(told, (std::map<std::uint32_t, std::uint64_t>{{1, 3}, {2, 4}}));
}

TEST(FabricExpectations, takes_are_served_in_their_order) {
  Table table;
  constexpr Immediate at{1, Expectations::barrier_scope};
  std::vector<int> served;
  static_cast<void>(value_of(table.all->take(at, 3, [&] { served.push_back(1); })));
  const auto second = value_of(table.all->take(at, 2, [&] { served.push_back(2); }));
  static_cast<void>(value_of(table.all->take(at, 1, [&] { served.push_back(3); })));
  table.all->arrived(at, 2);
  EXPECT_TRUE(served.empty());
  table.all->arrived(at, 1);
  EXPECT_EQ(served, std::vector<int>{1});
  table.all->arrived(at, 1);
  table.all->give_up(second);
  EXPECT_EQ(served, (std::vector<int>{1, 3})) << "the next one needs less";
}

// ------------------------------------------------------------------ over sockets

FabricPost with(Immediate immediate, FabricCountBy by = FabricCountBy::request) {
  FabricPost post;
  post.immediate = immediate;
  post.count_by = by;
  return post;
}

TEST(FabricCounting, a_full_round_has_all_bytes_of_its_writes) {
  TwoFabrics two(1 << 20);
  constexpr std::uint64_t parts = 16, part = (1 << 20) / parts;
  auto expectation = value_of(two.there.expect({9, 2}, parts));
  for (std::uint64_t i = 0; i < parts; ++i)
    ASSERT_TRUE(two.here.write(two.here_block->memory, i * part, two.target(), i * part, part, with({9, 2})));
  ASSERT_TRUE(expectation.wait(long_enough).ok());
  EXPECT_EQ(two.here_block->bytes, two.there_block->bytes);
}

TEST(FabricCounting, an_immediate_before_its_expect_is_not_lost) {
  TwoFabrics two(4096);
  expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096, with({1, 0})));
  const auto peer = value_of(two.here.connect(two.there.address()));
  for (int i = 0; i < 3; ++i) expect_done(two.here.post_immediate(peer, {1, 0}));
  auto expectation = value_of(two.there.expect({1, 0}, 4));
  EXPECT_TRUE(expectation.wait(long_enough).ok());
  EXPECT_EQ(two.here_block->bytes, two.there_block->bytes);
}

TEST(FabricCounting, a_post_counts_once_for_each_page_or_each_network_card) {
  TwoFabrics two(64 << 10);
  auto pages = value_of(two.there.expect({1, 0}, 64));
  auto shards = value_of(two.there.expect({2, 0}, 2));
  expect_done(two.here.write_pages(two.here_block->memory, {}, two.target(), {}, 1000, 64,
                                   with({1, 0}, FabricCountBy::page)));
  expect_done(
      two.here.write(two.here_block->memory, 0, two.target(), 0, 10, with({2, 0}, FabricCountBy::shard)));
  EXPECT_TRUE(pages.wait(long_enough).ok());
  EXPECT_TRUE(shards.wait(long_enough).ok());
  EXPECT_EQ(pages.remove(), 0U);
  EXPECT_EQ(shards.remove(), 0U);
}

TEST(FabricCounting, a_post_of_no_pages_counts_nothing_by_page_and_once_by_request) {
  TwoFabrics two(4096);
  auto pages = value_of(two.there.expect({1, 0}, 2));
  auto requests = value_of(two.there.expect({2, 0}, 1));
  const auto& memory = two.here_block->memory;
  const auto by_page = with({1, 0}, FabricCountBy::page);
  expect_done(two.here.write_pages(memory, {}, two.target(), {}, 64, 0, by_page));
  expect_done(two.here.write(memory, 0, two.target(), 0, 64, by_page));
  expect_done(two.here.post_immediate(value_of(two.here.connect(two.there.address())), {1, 0}, by_page));
  expect_done(two.here.write_pages(memory, {}, two.target(), {}, 64, 0, with({2, 0})));
  EXPECT_TRUE(pages.wait(long_enough).ok());
  EXPECT_TRUE(requests.wait(long_enough).ok());
  EXPECT_EQ(pages.remove(), 0U);
}

TEST(FabricCounting, a_reader_of_the_word_sees_the_bytes_of_each_round) {
  TwoFabrics two(8192);
  const auto expectation = value_of(two.there.expect({1, 0}, 1));
  for (std::uint8_t round = 1; round <= 20; ++round) {
    std::fill(two.here_block->bytes.begin(), two.here_block->bytes.end(), round);
    const auto work = two.here.write(two.here_block->memory, 0, two.target(), 0, 8192, with({1, 0}));
    ASSERT_TRUE(work);
    while (expectation.rounds().load(std::memory_order_acquire) < round) std::this_thread::yield();
    EXPECT_EQ(two.there_block->bytes, std::vector<std::uint8_t>(8192, round));
    expect_done(work);  // until then the source is in use
  }
}

TEST(FabricCounting, peers_meet_in_a_barrier_again_and_again) {
  constexpr int count = 3;
  std::vector<Fabric> fabrics;
  std::vector<FabricPeers> others;
  for (int i = 0; i < count; ++i) fabrics.push_back(open_at({"127.0.0.1"}));
  for (int i = 0; i < count; ++i) {
    std::vector<FabricAddress> addresses;
    for (int other = 0; other < count; ++other)
      if (other != i) addresses.push_back(fabrics[other].address());
    others.push_back(value_of(fabrics[i].peer_group(3, addresses)));
  }
  std::atomic<int> arrived = 0;
  std::vector<std::future<void>> members;
  for (int i = 0; i < count; ++i)
    members.push_back(std::async(std::launch::async, [&, i] {
      for (int round = 0; round < 10; ++round) {
        ++arrived;
        expect_done(fabrics[i].barrier(others[i], 5));
        EXPECT_GE(arrived.load(), (round + 1) * count) << "it ended before all were there";
      }
    }));
  for (auto& member : members) member.get();
}

TEST(FabricCounting, a_barrier_ends_at_its_time_when_a_peer_does_not_come) {
  TwoFabrics two(64);
  const FabricAddress addresses[] = {two.there.address()};
  const auto group = value_of(two.here.peer_group(0, addresses));
  FabricPost post;
  post.timeout = 50ms;
  const auto work = value_of(two.here.barrier(group, 1, post));
  EXPECT_EQ(work.wait(long_enough).code, Code::timed_out);
  EXPECT_NE(work.error().message.find("barrier 1 of 1 peers"), std::string::npos) << work.error().message;
  EXPECT_EQ(two.here.barrier(group, 1, with({1, 0})).code(), Code::invalid_argument);
}

TEST(FabricCounting, members_leave_and_join_without_a_new_group) {
  TwoFabrics two(64);
  const FabricAddress addresses[] = {two.there.address(), two.here.address()};
  const auto group = value_of(two.here.peer_group(7, addresses));
  EXPECT_EQ(group.members().size(), 2U);
  ASSERT_TRUE(group.leave(group.members()[1]));
  EXPECT_EQ(group.leave(value_of(two.here.connect(two.here.address()))).code(), Code::not_found);
  ASSERT_EQ(group.members().size(), 1U);
  EXPECT_EQ(group.members()[0].address(), two.there.address());
  group.join(group.members()[0]);
  EXPECT_EQ(group.members().size(), 1U) << "it was a member";
  group.join(value_of(two.here.connect(two.here.address())));
  EXPECT_EQ(group.members().size(), 2U);
  auto expectation = value_of(two.there.expect({1, group.scope()}, 1));
  expect_done(two.here.post_immediate(group.members()[0], {1, group.scope()}));
  EXPECT_TRUE(expectation.wait(long_enough).ok());
}

}  // namespace
}  // namespace headrace::test_fabric
