// SPDX-License-Identifier: Apache-2.0
// Calls that are kept, and issued together.
#include "hook_lines.hpp"
#include "ranks.hpp"

#include <gmock/gmock.h>

namespace headrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Coalescing, issues_the_calls_of_the_thread_in_order_and_ends_them_as_one) {
  for (const bool async : {false, true}) {
    with_ranks(3, [async](Comm& comm) {
      std::vector<float> sum(1000, 1), root(10, static_cast<float>(comm.rank())), got(4), sent(4, 5);
      must(comm.start_coalescing());
      const Work first = must(comm.all_reduce(sum, ReduceOp::sum));
      const Work second = must(comm.broadcast(root, 2));
      if (comm.rank() == 0) ok(comm.send(sent, 1));
      if (comm.rank() == 1) ok(comm.recv(got, 0));
      EXPECT_EQ(sum[0], 1);
      EXPECT_EQ(first.status(), WorkStatus::not_started);
      EXPECT_TRUE(comm.is_coalescing());
      const Work all = must(comm.end_coalescing(async));
      EXPECT_FALSE(comm.is_coalescing());
      must(all.wait());
      EXPECT_EQ(first.status(), WorkStatus::completed);
      EXPECT_EQ(second.status(), WorkStatus::completed);
      EXPECT_EQ(sum[999], 3);
      EXPECT_EQ(root[9], 2);
      if (comm.rank() == 1) {
        EXPECT_EQ(got, sent);
      }
      ok(comm.barrier());
    });
  }
}

TEST(Coalescing, fits_ranks_that_call_the_same_operations_one_by_one) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> data(10, 1);
    if (comm.rank() == 0) must(comm.start_coalescing());
    ok(comm.all_reduce(data, ReduceOp::sum));
    ok(comm.all_reduce(data, ReduceOp::sum));
    if (comm.rank() == 0) ok(comm.end_coalescing());
    EXPECT_EQ(data[0], 4);
  });
}

TEST(Coalescing, checks_arguments_at_the_call) {
  with_ranks(1, [](Comm& comm) {
    std::vector<float> data(4), other(5);
    must(comm.start_coalescing());
    EXPECT_EQ(comm.all_reduce(data, other, ReduceOp::sum).code(), Code::invalid_argument);
    EXPECT_THAT(comm.all_reduce(data, ReduceOp::bxor).error().message, HasSubstr("all_reduce of"));
    EXPECT_THAT(comm.broadcast(data, 0, {.hints = {{"algorithm", "one_shot"}}}).error().message,
                HasSubstr("no hint"));
    ok(comm.all_reduce(data, ReduceOp::sum, {.hints = {{"algorithm", "one_shot"}}}));
    ok(comm.end_coalescing());
  });
}

TEST(Coalescing, leaves_the_calls_of_other_threads_alone) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> kept(10, 1);
    must(comm.start_coalescing());
    ok(comm.all_reduce(kept, ReduceOp::sum));
    std::jthread([&] {
      std::vector<float> data(10, 1);
      EXPECT_FALSE(comm.is_coalescing());
      ok(comm.all_reduce(data, ReduceOp::sum));
      EXPECT_EQ(data[0], 2);
      must(comm.start_coalescing());
      ok(comm.all_reduce(data, ReduceOp::sum));
      ok(comm.end_coalescing());
      EXPECT_EQ(data[0], 4);
    }).join();
    EXPECT_EQ(kept[0], 1);
    ok(comm.end_coalescing());
    EXPECT_EQ(kept[0], 2);
  });
}

TEST(Coalescing, that_a_thread_did_not_end_is_not_continued_by_a_later_thread) {
  with_ranks(1, [](Comm& comm) {
    std::thread([&] { must(comm.start_coalescing()); }).join();
    for (int i = 0; i < 8; ++i) std::thread([&] { EXPECT_FALSE(comm.is_coalescing()); }).join();
  });
}

TEST(Coalescing, is_not_nested_and_has_a_start) {
  with_ranks(1, [](Comm& comm) {
    EXPECT_THAT(comm.end_coalescing().error().message, HasSubstr("has not called start_coalescing"));
    EXPECT_EQ(comm.cancel_coalescing().code(), Code::invalid_argument);
    must(comm.start_coalescing());
    EXPECT_THAT(comm.start_coalescing().error().message, HasSubstr("call end_coalescing first"));
    EXPECT_EQ(must(comm.end_coalescing()).status(), WorkStatus::completed);  // of nothing
  });
}

TEST(Coalescing, a_wait_for_a_call_that_is_kept_is_refused) {
  with_ranks(1, [](Comm& comm) {
    std::vector<float> data(4);
    must(comm.start_coalescing());
    const Work work = must(comm.all_reduce(data, ReduceOp::sum));
    EXPECT_THAT(work.wait().error().message, HasSubstr("call end_coalescing first"));
    ok(comm.end_coalescing());
    must(work.wait());
  });
}

TEST(Coalescing, a_cancel_forgets_the_calls_and_releases_their_memory) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> data(4, 1);
    auto owner = std::make_shared<int>();
    must(comm.start_coalescing());
    const Work work = must(comm.all_reduce(data, ReduceOp::sum, {.owner = owner}));
    EXPECT_EQ(owner.use_count(), 2);
    must(comm.cancel_coalescing("not today"));
    EXPECT_EQ(owner.use_count(), 1);
    EXPECT_EQ(work.wait().code(), Code::canceled);
    EXPECT_THAT(work.error().message, AllOf(HasSubstr("coalesced number 1"), HasSubstr("not today")));
    ok(comm.barrier());
    EXPECT_EQ(data[0], 1);
  });
}

TEST(Coalescing, ends_with_the_reason_after_an_abort) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> data(4);
    must(comm.start_coalescing());
    const Work work = must(comm.all_reduce(data, ReduceOp::sum));
    if (comm.rank() == 0) comm.abort("enough");
    EXPECT_THAT(comm.end_coalescing().error().message, HasSubstr("enough"));
    EXPECT_EQ(work.status(), WorkStatus::aborted);
  });
}

TEST(Coalescing, does_not_issue_calls_after_the_communicator_was_left) {
  with_ranks(1, [](Comm& comm) {
    std::vector<float> data(4);
    must(comm.start_coalescing());
    const Work work = must(comm.all_reduce(data, ReduceOp::sum));
    must(comm.finalize());
    EXPECT_EQ(work.wait().code(), Code::canceled);
    const auto ended = comm.end_coalescing();
    EXPECT_EQ(ended.code(), Code::invalid_argument);
    EXPECT_THAT(ended.error().message, HasSubstr("was left before end_coalescing"));
    EXPECT_EQ(comm.start_coalescing().code(), Code::invalid_argument);
  });
  Work work;
  std::vector<float> data(4);
  with_ranks(1, [&](Comm& comm) {
    must(comm.start_coalescing());
    work = must(comm.all_reduce(data, ReduceOp::sum));
  });
  EXPECT_EQ(work.status(), WorkStatus::aborted);
}

TEST(Coalescing, takes_the_messages_of_a_batch) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> in(3, static_cast<float>(comm.rank())), out(3), sum(2, 1);
    must(comm.start_coalescing());
    Batch batch = comm.batch();
    must(batch.send(in, 1 - comm.rank()));
    must(batch.recv(out, 1 - comm.rank()));
    const Work work = must(batch.issue());
    ok(comm.all_reduce(sum, ReduceOp::sum));
    EXPECT_EQ(work.status(), WorkStatus::not_started);
    ok(comm.end_coalescing());
    EXPECT_EQ(work.status(), WorkStatus::completed);
    EXPECT_EQ(out[0], static_cast<float>(1 - comm.rank()));
    EXPECT_EQ(sum[0], 2);
  });
}

TEST(Coalescing, ends_with_the_first_error_once_all_calls_have_ended) {
  with_ranks(2,
             [](Comm& comm) {
               std::vector<float> a(comm.rank() == 0 ? 3 : 4, 1), b(3, 1);
               must(comm.start_coalescing());
               ok(comm.all_reduce(a, ReduceOp::sum));
               ok(comm.all_reduce(b, ReduceOp::sum));
               const auto failed = comm.end_coalescing();
               EXPECT_EQ(failed.code(), Code::invalid_argument);
               EXPECT_THAT(failed.error().message, HasSubstr("all_reduce number 2 of coalesced number 1 of"));
               EXPECT_EQ(b[0], 2);
             },
             {{"check", "on"}});
}

TEST(Coalescing, tells_hooks_of_each_call_and_of_all_together) {
  with_ranks(2, [](Comm& comm) {
    HookLines told;
    comm.add_hooks(told.hooks());
    CommHooks refusal;
    refusal.before = [](const CommCall& call) -> Result<void> {
      if (call.operation == CommOperation::broadcast) return Error{Code::invalid_argument, "no broadcast"};
      return {};
    };
    comm.add_hooks(refusal);
    std::vector<float> data(3);
    must(comm.start_coalescing());
    ok(comm.all_reduce(data, ReduceOp::sum));
    EXPECT_EQ(comm.broadcast(data, 0).code(), Code::invalid_argument);
    ok(comm.end_coalescing());
    EXPECT_THAT(told.take_of({"before", "scheduled"}),
                testing::ElementsAre("before all_reduce 0", "before broadcast 0", "scheduled coalesced 1",
                                     "scheduled all_reduce 2"));
  });
}

}  // namespace
}  // namespace headrace::test
