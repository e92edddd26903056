// SPDX-License-Identifier: Apache-2.0
// Sends and receives that are issued together.
#include "hook_lines.hpp"
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace headrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

std::vector<std::int32_t> row(std::size_t count, int first) {
  std::vector<std::int32_t> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

TEST(Batch, moves_to_and_from_all_ranks_in_one_call) {
  for (const bool async : {false, true}) {
    with_ranks(3, [async](Comm& comm) {
      constexpr std::size_t count = 100'000;  // more than a lane holds
      const auto mine = row(count, comm.rank());
      std::vector<std::vector<std::int32_t>> got(3, std::vector<std::int32_t>(count));
      Batch batch = comm.batch();
      for (int other = 0; other < 3; ++other) {
        if (other == comm.rank()) continue;
        must(batch.send(mine, other));
        must(batch.recv(got[static_cast<std::size_t>(other)], other));
      }
      const Work work = must(batch.issue({.async = async}));
      must(work.wait());
      EXPECT_EQ(work.status(), WorkStatus::completed);
      for (int other = 0; other < 3; ++other)
        if (other != comm.rank()) {
          EXPECT_EQ(got[static_cast<std::size_t>(other)], row(count, other));
        }
    });
  }
}

TEST(Batch, keeps_the_order_of_messages_with_one_tag_and_finds_tags) {
  with_ranks(2, [](Comm& comm) {
    std::vector<std::vector<std::int32_t>> data(3, std::vector<std::int32_t>(5));
    Batch batch = comm.batch();
    if (comm.rank() == 0) {
      for (int i = 0; i < 3; ++i) {
        data[static_cast<std::size_t>(i)] = row(5, i);
        must(batch.send(data[static_cast<std::size_t>(i)], 1, i == 1 ? 7 : 0));
      }
    } else {
      must(batch.recv(data[1], 0, 7));
      must(batch.recv(data[0], any_source));
      must(batch.recv(data[2], 0));
    }
    ok(batch.issue());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(data[static_cast<std::size_t>(i)], row(5, i));
  });
}

TEST(Batch, without_messages_is_done_at_once) {
  with_ranks(1, [](Comm& comm) {
    Batch batch = comm.batch();
    EXPECT_EQ(must(batch.issue({.async = true})).status(), WorkStatus::completed);
  });
}

TEST(Batch, is_issued_once_and_refuses_wrong_arguments_when_they_are_added) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> data(3);
    Batch batch = comm.batch();
    const auto refused = batch.send(data, 5);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, AllOf(HasSubstr("send of"), HasSubstr("rank 5")));
    EXPECT_THAT(batch.recv({nullptr, 3, DType::float32}, 0).error().message, HasSubstr("null address"));
    EXPECT_THAT(batch.issue({.hints = {{"a", "b"}}}).error().message, HasSubstr("no hints"));
    comm.rank() == 0 ? must(batch.send(data, 1)) : must(batch.recv(data, 0));
    ok(batch.issue());
    EXPECT_THAT(batch.issue().error().message, HasSubstr("has been issued: make another one"));
    EXPECT_EQ(batch.send(data, 1 - comm.rank()).code(), Code::invalid_argument);
    ok(comm.barrier());
  });
}

TEST(Batch, ends_with_the_first_error_once_all_its_messages_have_ended) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> wrong(4), right(3), sent(3, 2);
    if (comm.rank() == 0) {
      ok(comm.send(sent, 1));  // of another length than its receive
      ok(comm.barrier());
      std::this_thread::sleep_for(20ms);
      ok(comm.send(sent, 1, {.tag = 1}));
      return;
    }
    Batch batch = comm.batch();
    must(batch.recv(wrong, 0));
    must(batch.recv(right, 0, 1));
    const Work work = must(batch.issue({.async = true}));
    ok(comm.barrier());
    const auto failed = work.wait();
    EXPECT_EQ(failed.code(), Code::invalid_argument);
    EXPECT_THAT(failed.error().message,
                AllOf(HasSubstr("rank 1, recv number 1 of batch number 1 of"), HasSubstr("has 12 bytes")));
    EXPECT_EQ(work.status(), WorkStatus::failed);
    EXPECT_EQ(right, sent);  // it had ended before the work did
  });
}

TEST(Batch, whose_messages_have_not_begun_is_late_alone) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> data(3);
    if (comm.rank() == 1) {
      Batch batch = comm.batch();
      must(batch.recv(data, 0));
      const auto late = batch.issue({.timeout = 30ms});
      EXPECT_EQ(late.code(), Code::timed_out);
      EXPECT_THAT(late.error().message, HasSubstr("rank 0 has not come within 30 ms"));
      EXPECT_FALSE(comm.is_aborted());
    }
    ok(comm.barrier());
  });
}

TEST(Batch, is_ended_by_an_abort_and_refused_afterwards) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> data(3);
    Batch batch = comm.batch();
    must(batch.recv(data, 1 - comm.rank()));
    const Work work = must(batch.issue({.async = true}));
    if (comm.rank() == 0) comm.abort("enough");
    EXPECT_THAT(work.wait().error().message, HasSubstr("enough"));
    EXPECT_EQ(work.status(), WorkStatus::aborted);
    Batch next = comm.batch();
    must(next.recv(data, 1 - comm.rank()));
    EXPECT_EQ(next.issue().code(), Code::canceled);
  });
}

TEST(Batch, and_its_messages_are_told_to_hooks) {
  with_ranks(2, [](Comm& comm) {
    CommHooks checks;
    checks.before = [](const CommCall& call) -> Result<void> {
      EXPECT_EQ(call.inputs.size(), 1U);
      EXPECT_EQ(call.outputs.size(), 1U);
      return {};
    };
    checks.scheduled = [](const CommCall& call) {
      EXPECT_EQ(call.group.number, call.operation == CommOperation::batch ? 0U : 1U);
    };
    comm.add_hooks(checks);
    HookLines told;
    comm.add_hooks(told.hooks());
    std::vector<float> in(3), out(3);
    Batch batch = comm.batch();
    must(batch.send(in, 1 - comm.rank()));
    must(batch.recv(out, 1 - comm.rank()));
    ok(batch.issue());
    const std::vector<std::string> lines = told.take();
    EXPECT_EQ(lines.front(), "before batch 0");
    EXPECT_EQ(lines[1], "scheduled batch 1");
    EXPECT_EQ(lines[lines.size() - 2], "completed batch 1");
    EXPECT_EQ(lines.back(), "after batch 1");
    for (const char* line : {"scheduled send 1", "scheduled recv 2", "completed send 1", "completed recv 2"})
      EXPECT_EQ(std::ranges::count(lines, line), 1) << line;
  });
}

}  // namespace
}  // namespace headrace::test
