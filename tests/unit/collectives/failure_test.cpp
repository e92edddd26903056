// SPDX-License-Identifier: Apache-2.0
// What each rank gets when an operation is late, aborted, or another than that of the other ranks.
#include "ranks.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>

namespace headrace::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(CommFailure,
     an_operation_that_is_late_names_rank_operation_number_and_the_rank_awaited_and_ends_the_communicator) {
  std::atomic<bool> late_seen = false;
  with_ranks(2, [&](Comm& comm) {
    ok(comm.barrier());
    if (comm.rank() == 1) {
      while (!late_seen) std::this_thread::sleep_for(1ms);
      const auto refused = comm.barrier();
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.code(), Code::canceled);
      EXPECT_THAT(refused.error().message, HasSubstr("rank 0, all_reduce number 3"));
      EXPECT_TRUE(comm.is_aborted());
      return;
    }
    OpOptions soon;
    soon.timeout = 50ms;
    std::vector<float> data(100);
    const auto begin = Clock::now();
    const auto late = comm.all_reduce(data, ReduceOp::sum, soon);
    EXPECT_GE(Clock::now() - begin, 50ms);
    late_seen = true;
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.code(), Code::timed_out);
    EXPECT_THAT(late.error().message, HasSubstr("rank 0, all_reduce number 3 of \"comm-"));
    EXPECT_THAT(late.error().message, HasSubstr("rank 1 has not come within 50 ms"));
    EXPECT_EQ(comm.barrier().code(), Code::timed_out);
  });
}

TEST(CommFailure, a_wait_that_is_late_says_what_the_operation_waits_for_and_lets_it_go_on) {
  std::atomic<bool> waited = false;
  with_ranks(2, [&](Comm& comm) {
    std::vector<float> data(100, 1);
    OpOptions async;
    async.async = true;
    if (comm.rank() == 1)
      while (!waited) std::this_thread::sleep_for(1ms);
    const Work work = must(comm.all_reduce(data, ReduceOp::sum, async));
    if (comm.rank() == 0) {
      while (work.status() == WorkStatus::not_started) std::this_thread::sleep_for(1ms);
      auto late = work.wait(20ms);
      while (late.code() == Code::timed_out && late.error().message.find("rank 1;") == std::string::npos)
        late = work.wait(20ms);  // the thread that runs it has not begun to wait yet
      EXPECT_THAT(late.error().message, HasSubstr("it still waits for rank 1; it goes on"));
      waited = true;
    }
    must(work.wait());
    EXPECT_EQ(data[99], 2);
  });
}

TEST(CommFailure, an_abort_from_another_thread_ends_every_wait_on_all_ranks_with_rank_and_reason) {
  std::atomic<int> waiting = 0;
  std::atomic<Clock::rep> aborted_at = 0;
  with_ranks(3, [&](Comm& comm) {
    std::optional<std::jthread> aborter;
    if (comm.rank() == 2) {
      aborter.emplace([&] {
        while (waiting < 3) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(30ms);  // all sleep in their waits by now; it holds without this, too
        aborted_at = Clock::now().time_since_epoch().count();
        comm.abort("the user pressed a key");
      });
    }
    // Each waits for another one: for a message that nobody sends, or for a rank that does not come.
    ++waiting;
    std::vector<float> data(100);
    const auto result = comm.rank() == 0   ? comm.recv(data, 1)
                        : comm.rank() == 1 ? comm.all_reduce(data, ReduceOp::sum)
                                           : comm.recv(data, any_source);
    const auto took = Clock::now() - Clock::time_point(Clock::duration(aborted_at.load()));
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.code(), Code::canceled);
    EXPECT_THAT(result.error().message, HasSubstr("rank 2 aborted"));
    EXPECT_THAT(result.error().message, HasSubstr("the user pressed a key"));
    EXPECT_LT(took, 10s);  // 100 ms on an idle machine
    EXPECT_TRUE(comm.is_aborted());
  });
}

TEST(CommFailure, ranks_in_different_operations_are_both_told) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> data(100);
    const auto result =
        comm.rank() == 0 ? comm.all_reduce(data, ReduceOp::sum) : comm.reduce(data, 0, ReduceOp::sum);
    if (comm.rank() == 1 && result.ok()) return;  // it has sent all it had to send
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.code(), Code::invalid_argument);
    EXPECT_THAT(result.error().message, AnyOf(HasSubstr("rank 1 is in reduce number 2"),
                                              HasSubstr("rank 0 is in all_reduce number 2")));
  });
}

TEST(CommFailure, ranks_with_different_counts_are_told_what_was_expected) {
  std::atomic<int> told = 0;
  with_ranks(2, [&](Comm& comm) {
    std::vector<float> data(comm.rank() == 0 ? 100 : 200);
    const auto result = comm.all_reduce(data, ReduceOp::sum);
    if (!result.ok() && result.error().message.find("were expected") != std::string::npos) ++told;
    while (told == 0) std::this_thread::sleep_for(1ms);
  });
  EXPECT_GE(told, 1);
}

TEST(CommFailure, a_rank_that_leaves_is_named_to_those_that_wait_for_it) {
  with_ranks(2, [](Comm& comm) {
    if (comm.rank() == 1) return must(comm.finalize());
    const auto lost = comm.barrier();
    ASSERT_FALSE(lost.ok());
    EXPECT_EQ(lost.code(), Code::peer_lost);
    EXPECT_THAT(lost.error().message, HasSubstr("rank 1 is gone"));
  });
}

TEST(CommFailure, a_receive_from_a_rank_that_has_left_is_named_once) {
  with_ranks(2, [](Comm& comm) {
    if (comm.rank() == 1) return must(comm.finalize());
    std::vector<float> data(10);
    const std::string text = comm.recv(data, 1).error().message;
    EXPECT_THAT(text, HasSubstr("rank 1 is gone"));
    EXPECT_EQ(text.find("recv number"), text.rfind("recv number")) << text;
  });
}

TEST(CommFailure, what_a_rank_sent_before_it_left_arrives) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> data(2000, 3);
    if (comm.rank() == 1) return ok(comm.send(data, 0));
    std::this_thread::sleep_for(50ms);
    std::vector<float> got(2000);
    ok(comm.recv(got, 1));
    EXPECT_EQ(got, data);
  });
}

TEST(CommFailure, after_finalize_an_operation_is_refused) {
  with_ranks(1, [](Comm& comm) {
    must(comm.finalize());
    must(comm.finalize());
    EXPECT_THAT(comm.barrier().error().message, HasSubstr("has been finalized"));
  });
}

TEST(CommFailure, a_communicator_that_goes_ends_what_is_under_way_everywhere) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> data(100);
    OpOptions async;
    async.async = true;
    if (comm.rank() == 0) {
      Work work;
      {
        Comm leaving = std::move(comm);
        work = must(leaving.all_reduce(data, ReduceOp::sum, async));
        while (work.status() == WorkStatus::not_started) std::this_thread::yield();
      }
      EXPECT_EQ(work.wait().code(), Code::canceled);
      EXPECT_EQ(work.status(), WorkStatus::aborted);
    } else {
      std::vector<float> got(10);
      const auto result = comm.recv(got, 0);
      EXPECT_EQ(result.code(), Code::canceled);
      EXPECT_THAT(result.error().message, HasSubstr("left while operations were under way"));
    }
  });
}

TEST(CommFailure, an_operation_without_hints_refuses_them_and_ends_nothing) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> data(3, 1);
    const auto refused = comm.broadcast(data, 0, {.hints = {{"algorithm", "one_shot"}}});
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("broadcast of")) << refused.error().message;
    EXPECT_THAT(refused.error().message, HasSubstr("no hint \"algorithm\""));
    ok(comm.broadcast(data, 0));
  });
}

TEST(CommFork, a_child_leaves_the_communicators_of_its_parent_alone) {
  const std::string name = unique_comm_name();
  std::vector<std::optional<Comm>> comms(2);
  on_threads(2, [&](int rank) {
    comms[static_cast<std::size_t>(rank)] = must(Comm::open(rank_options(rank, 2, name)));
  });
  std::vector<float> got(1);
  const Work pending = must(comms[0]->recv(got, 1, {.async = true}));  // its thread runs
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<float> data(1);
    const auto refused = comms[0]->all_reduce(data, ReduceOp::sum);
    const auto waited = pending.wait();
    comms[0]->abort("by the child");
    const bool right = refused.code() == Code::invalid_argument &&
                       refused.error().message.find("forked") != std::string::npos &&
                       waited.code() == Code::invalid_argument && !pending.is_completed() &&
                       comms[1]->finalize().code() == Code::invalid_argument;
    comms.clear();
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const std::vector<float> sent{7};
  ok(comms[1]->send(sent, 0));
  must(pending.wait());
  EXPECT_EQ(got, sent);
  on_threads(2, [&](int rank) {
    std::vector<float> data{static_cast<float>(rank + 1)};
    ok(comms[static_cast<std::size_t>(rank)]->all_reduce(data, ReduceOp::sum));
    EXPECT_EQ(data[0], 3);
  });
}

}  // namespace
}  // namespace headrace::test
