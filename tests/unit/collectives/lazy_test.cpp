// SPDX-License-Identifier: Apache-2.0
// The backend `lazy`: ranks connect at their first message, and all of them at the first collective.
#include "ranks.hpp"

#include "support/open_descriptors.hpp"

#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

namespace headrace::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

CommOptions lazy_options(int rank, int size, const std::string& name, const char* backends) {
  CommOptions options = rank_options(rank, size, name);
  options.backend = "lazy";
  options.hints["backends"] = backends;
  return options;
}

/// Ranks that stay until all have done their part.
class LazyRanks {
 public:
  explicit LazyRanks(int size, const char* backends = "shm", const char* backend = "lazy")
      : comms_(static_cast<std::size_t>(size)) {
    const std::string name = unique_comm_name();
    on_threads(size, [&](int rank) {
      CommOptions options = lazy_options(rank, size, name, backends);
      options.backend = backend;
      (*this)[rank] = must(Comm::open(options));
    });
  }
  std::optional<Comm>& operator[](int rank) { return comms_[static_cast<std::size_t>(rank)]; }
  Comm& at(int rank) { return *(*this)[rank]; }

 private:
  std::vector<std::optional<Comm>> comms_;
};

std::vector<float> numbers(std::size_t count, float first) {
  std::vector<float> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

void send_and_receive(LazyRanks& ranks, int from, int to, std::size_t count) {
  const std::vector<float> sent = numbers(count, static_cast<float>(from));
  std::vector<float> got(count);
  const Work sending = must(ranks.at(from).send(sent, to, {.async = true}));
  const Work receiving = must(ranks.at(to).recv(got, from, {.async = true}));
  must(sending.wait());
  must(receiving.wait());
  EXPECT_EQ(got, sent);
}

TEST(LazyComm, opens_no_connection_and_then_one_for_each_pair_that_speaks) {
  constexpr int size = 5, pairs = size * (size - 1) / 2;
  const std::size_t before = open_descriptors();
  std::optional<LazyRanks> all(std::in_place, size, "shm", "host");
  const std::size_t of_all = open_descriptors() - before;
  all.reset();
  LazyRanks ranks(size);
  const std::size_t of_none = open_descriptors() - before;
  EXPECT_LE(of_none + 2 * pairs, of_all) << "a link has two ends in this process";
  send_and_receive(ranks, 1, 3, 10);
  const std::size_t of_one = open_descriptors() - before;
  EXPECT_LT(of_none, of_one);
  EXPECT_LT(of_one, of_all);
  send_and_receive(ranks, 3, 1, 100'000);
  EXPECT_EQ(open_descriptors() - before, of_one);
  EXPECT_EQ(ranks.at(0).backend(), "lazy");
}

class LazyOver : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ways, LazyOver, testing::Values("shm", "tcp"),
                         [](const auto& way) { return std::string(way.param); });

TEST_P(LazyOver, messages_of_any_size_go_both_ways_and_from_any_rank) {
  LazyRanks ranks(3, GetParam());
  for (const std::size_t count : {0UL, 1UL, 1000UL, 500'000UL}) {
    send_and_receive(ranks, 0, 1, count);
    send_and_receive(ranks, 1, 0, count);
    const std::vector<float> sent = numbers(count, 7);
    std::vector<float> got(count);
    const Work receiving = must(ranks.at(2).recv(got, any_source, {.async = true, .tag = 3}));
    const Work sending = must(ranks.at(0).send(sent, 2, {.async = true, .tag = 3}));
    must(receiving.wait());
    must(sending.wait());
    EXPECT_EQ(receiving.source(), 0);
    EXPECT_EQ(got, sent);
  }
}

TEST_P(LazyOver, collectives_of_it_and_of_its_splits_connect_all) {
  const std::string name = unique_comm_name();
  on_threads(3, [&](int rank) {
    Comm comm = must(Comm::open(lazy_options(rank, 3, name, GetParam())));
    std::vector<float> data(50'000, static_cast<float>(rank + 1));
    ok(comm.all_reduce(data, ReduceOp::sum));
    EXPECT_EQ(data.back(), 6);
    const std::array group{2, 0};
    std::optional<Comm> part = must(comm.split(rank == 1 ? std::span<const int>() : group, "part"));
    if (!part) return;
    EXPECT_EQ(part->backend(), "lazy");
    std::vector<std::int64_t> one{rank};
    if (part->rank() == 0)
      ok(part->send(one, 1));
    else
      ok(part->recv(one, 0));
    EXPECT_EQ(one[0], 2);
    ok(part->barrier());
  });
}

TEST_P(LazyOver, a_batch_connects_its_ranks) {
  const std::string name = unique_comm_name();
  on_threads(3, [&](int rank) {
    Comm comm = must(Comm::open(lazy_options(rank, 3, name, GetParam())));
    std::vector<int> to_left{rank}, from_right(1);
    Batch batch = comm.batch();
    must(batch.recv(from_right, (rank + 1) % 3));
    must(batch.send(to_left, (rank + 2) % 3));
    ok(batch.issue());
    EXPECT_EQ(from_right[0], (rank + 1) % 3);
    ok(comm.barrier());
  });
}

TEST_P(LazyOver, an_abort_reaches_a_rank_that_waits_for_this_one_and_one_that_comes_later) {
  LazyRanks ranks(3, GetParam());
  std::vector<float> data(1);
  const Work waiting = must(ranks.at(1).recv(data, 0, {.async = true}));
  ranks.at(0).abort("no more");
  const auto ended = waiting.wait(20s);
  EXPECT_EQ(ended.code(), Code::canceled);
  EXPECT_THAT(ended.error().message, HasSubstr("rank 0 aborted"));
  EXPECT_THAT(ended.error().message, HasSubstr("no more"));
  std::vector<float> others(1);
  const auto late = ranks.at(2).recv(others, 0, {.timeout = 20s});
  EXPECT_EQ(late.code(), Code::canceled);
  EXPECT_THAT(late.error().message, HasSubstr("no more"));
}

TEST_P(LazyOver, what_a_rank_sent_before_it_left_arrives) {
  LazyRanks ranks(2, GetParam());
  const std::vector<float> sent = numbers(2000, 1);
  ok(ranks.at(0).send(sent, 1));
  ranks[0].reset();
  std::vector<float> got(2000);
  ok(ranks.at(1).recv(got, any_source, {.timeout = 20s}));
  EXPECT_EQ(got, sent);
  const auto gone = ranks.at(1).recv(got, 0, {.timeout = 20s});
  EXPECT_EQ(gone.code(), Code::peer_lost);
  EXPECT_THAT(gone.error().message, HasSubstr("rank 0 is gone"));
}

TEST_P(LazyOver, a_rank_that_left_before_the_first_message_is_named) {
  LazyRanks ranks(3, GetParam());
  ranks[0].reset();
  std::vector<float> data(1);
  for (const auto& result :
       {ranks.at(1).recv(data, 0, {.timeout = 20s}), ranks.at(1).send(data, 0, {.timeout = 20s})}) {
    EXPECT_THAT(result.code(), AnyOf(Code::peer_lost, Code::not_supported)) << result.error().message;
    EXPECT_THAT(result.error().message, HasSubstr("connect to rank 0"));
  }
  EXPECT_FALSE(ranks.at(1).is_aborted());
  send_and_receive(ranks, 1, 2, 10);
}

TEST(LazyComm, refuses_ranks_that_are_not) {
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    CommOptions options = lazy_options(rank, 2, name, "shm");
    if (rank == 1) options.backend = "host";
    const auto refused = Comm::open(options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, AllOf(HasSubstr("rank 1 has"), HasSubstr("lazy"),
                                               HasSubstr("give all ranks the same hint lazy")));
  });
}

}  // namespace
}  // namespace headrace::test
