// SPDX-License-Identifier: Apache-2.0
// Ranks that do not come are named, all of them.
#include "collectives/missing_ranks.hpp"
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <latch>

namespace headrace::test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

TEST(MissingRanks, are_named_one_by_one_and_in_rows) {
  using collectives::ranks_text;
  EXPECT_EQ(ranks_text(std::vector{1}), "rank 1");
  EXPECT_EQ(ranks_text(std::vector{1, 3}), "ranks 1 and 3");
  EXPECT_EQ(ranks_text(std::vector{0, 1, 4}), "ranks 0, 1 and 4");
  EXPECT_EQ(ranks_text(std::vector{0, 1, 2, 3, 7}), "ranks 0 to 3 and 7");
  std::vector<int> odd;
  for (int rank = 1; rank < 100; rank += 2) odd.push_back(rank);
  EXPECT_EQ(ranks_text(odd), "ranks 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23 and others");
}

/// Within which ranks come that are not late, also on a busy machine: they begin together.
constexpr auto others_come_within = 500ms;
constexpr const char* two_are_late = "ranks 1 and 3 have not come within 500 ms";

/// Ranks 1 and 3 of four stay away from `operation` until rank 0 has seen that they are late.
void two_stay_away(const std::function<Result<Work>(Comm&)>& operation) {
  std::atomic<bool> late_seen = false;
  std::latch others(2);
  with_ranks(4, [&](Comm& comm) {
    if (comm.rank() % 2 == 1) {
      while (!late_seen) std::this_thread::sleep_for(1ms);
      return;
    }
    others.arrive_and_wait();
    const auto late = operation(comm);
    if (comm.rank() == 0) late_seen = true;
    ASSERT_FALSE(late.ok());
    EXPECT_THAT(late.error().message, HasSubstr(two_are_late));
    while (!late_seen) std::this_thread::sleep_for(1ms);
  });
}

TEST(MissingRanks, of_an_operation_that_receives_or_reduces_are_all_named) {
  two_stay_away([](Comm& comm) { return comm.barrier({.timeout = others_come_within}); });
  two_stay_away([](Comm& comm) {
    std::vector<float> data(10);
    return comm.all_reduce(data, ReduceOp::sum, {.timeout = others_come_within});
  });
}

TEST(MonitoredBarrier, lets_all_ranks_pass_once_all_have_come) {
  std::atomic<int> come = 0;
  for (const bool wait_all_ranks : {false, true}) {
    come = 0;
    with_ranks(3, [&](Comm& comm) {
      if (comm.rank() == 2) std::this_thread::sleep_for(20ms);
      ++come;
      must(comm.monitored_barrier(60s, wait_all_ranks));
      EXPECT_EQ(come, 3);
      ok(comm.barrier());
    });
  }
}

TEST(MonitoredBarrier, names_late_ranks_on_rank_0_and_the_others_hear_it_from_there) {
  std::atomic<int> told = 0;
  std::latch others(2);
  with_ranks(4, [&](Comm& comm) {
    if (comm.rank() % 2 == 1) {
      while (told < 2) std::this_thread::sleep_for(1ms);
      return;
    }
    others.arrive_and_wait();
    // Rank 2 would wait for long, and hears it at once.
    const auto late = comm.monitored_barrier(comm.rank() == 0 ? others_come_within : 60s);
    ++told;
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.code(), comm.rank() == 0 ? Code::timed_out : Code::canceled);
    EXPECT_THAT(late.error().message, HasSubstr("rank 0, monitored_barrier number 2 of"));
    EXPECT_THAT(late.error().message, HasSubstr(two_are_late));
    while (told < 2) std::this_thread::sleep_for(1ms);
  });
}

TEST(MonitoredBarrier, says_that_rank_0_has_not_come) {
  std::atomic<bool> told = false;
  with_ranks(2, [&](Comm& comm) {
    if (comm.rank() == 0) {
      while (!told) std::this_thread::sleep_for(1ms);
      return;
    }
    EXPECT_THAT(comm.monitored_barrier(50ms).error().message, HasSubstr("rank 0 has not come within 50 ms"));
    told = true;
  });
}

TEST(MonitoredBarrier, goes_on_without_a_rank_that_is_gone_if_all_are_waited_for) {
  for (const bool wait_all_ranks : {false, true}) {
    std::atomic<bool> gone = false, told = false;
    with_ranks(3, [&](Comm& comm) {
      if (comm.rank() == 1) {
        must(comm.finalize());
        gone = true;
        return;
      }
      if (comm.rank() == 2) {
        while (!told) std::this_thread::sleep_for(1ms);
        return;
      }
      while (!gone) std::this_thread::sleep_for(1ms);
      const auto result = comm.monitored_barrier(wait_all_ranks ? 500ms : 60s, wait_all_ranks);
      told = true;
      EXPECT_EQ(result.code(), wait_all_ranks ? Code::timed_out : Code::peer_lost);
      EXPECT_THAT(result.error().message, HasSubstr("rank 1 is gone"));
      if (wait_all_ranks) {
        EXPECT_THAT(result.error().message, HasSubstr("rank 2 has not come within 500 ms"));
      }
    });
  }
}

TEST(MonitoredBarrier, ends_at_once_when_all_that_have_not_come_are_gone) {
  with_ranks(3, [&](Comm& comm) {
    if (comm.rank() != 0) return must(comm.finalize());
    const auto result = comm.monitored_barrier(600s, true);
    EXPECT_EQ(result.code(), Code::peer_lost);
    EXPECT_THAT(result.error().message, HasSubstr("ranks 1 and 2 are gone"));
  });
}

}  // namespace
}  // namespace headrace::test
