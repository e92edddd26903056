// SPDX-License-Identifier: Apache-2.0
// Functions of the caller that a communicator calls beside its operations.
#include "hook_lines.hpp"
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <array>
#include <future>
#include <optional>

namespace headrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(CommHooks, are_told_of_each_step_of_a_call_until_they_are_removed) {
  with_ranks(2, [](Comm& comm) {
    HookLines lines;
    CommHook hook = comm.add_hooks(lines.hooks());
    std::vector<int> numbers{comm.rank(), 1, 2};
    ok(comm.all_reduce(numbers, ReduceOp::sum));
    EXPECT_THAT(lines.take(),
                ElementsAre("before all_reduce 0", "scheduled all_reduce 2", "started all_reduce 2",
                            "completed all_reduce 2", "after all_reduce 2"));
    hook.remove();
    hook.remove();
    ok(comm.barrier());
    EXPECT_THAT(lines.take(), ElementsAre());
  });
}

TEST(CommHooks, are_told_of_an_asynchronous_call_and_of_messages) {
  with_ranks(2, [](Comm& comm) {
    HookLines lines;
    comm.add_hooks(lines.hooks());
    OpOptions options;
    options.async = true;
    std::vector<int> numbers{1, 2, 3};
    const Work work = must(comm.all_reduce(numbers, ReduceOp::sum, options));
    must(work.wait());
    auto told = lines.take();
    std::ranges::sort(told);  // the worker may start it before the call returns
    EXPECT_THAT(told, ElementsAre("after all_reduce 2", "before all_reduce 0", "completed all_reduce 2",
                                  "scheduled all_reduce 2", "started all_reduce 2"));
    comm.rank() == 0 ? ok(comm.send(numbers, 1)) : ok(comm.recv(numbers, 0));
    const std::string name = comm.rank() == 0 ? "send" : "recv";
    EXPECT_THAT(lines.take(),
                ElementsAre("before " + name + " 0", "scheduled " + name + " 1", "started " + name + " 1",
                            "completed " + name + " 1", "after " + name + " 1"));
  });
}

TEST(CommHooks, get_what_the_call_reads_and_writes) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> input{1, 2, 3, 4, 5}, output(6);
    const std::array<std::size_t, 2> in{2, 3};
    const std::array<std::size_t, 2> out =
        comm.rank() == 0 ? std::array<std::size_t, 2>{2, 4} : std::array<std::size_t, 2>{3, 3};
    const std::array<std::size_t, 2> mine = comm.rank() == 0 ? in : std::array<std::size_t, 2>{4, 3};
    input.resize(mine[0] + mine[1]);
    output.resize(out[0] + out[1]);
    bool seen = false;
    CommHooks hooks;
    hooks.before = [&](const CommCall& call) -> Result<void> {
      seen = true;
      EXPECT_EQ(call.operation, CommOperation::all_to_all_v_single);
      EXPECT_EQ(call.inputs.front().data, input.data());
      EXPECT_EQ(call.inputs.front().count, input.size());
      EXPECT_EQ(call.inputs.front().dtype, DType::float32);
      EXPECT_EQ(call.outputs.front().data, output.data());
      EXPECT_THAT(call.input_splits, testing::ElementsAreArray(mine));
      EXPECT_THAT(call.output_splits, testing::ElementsAreArray(out));
      EXPECT_EQ(call.peer, -1);
      return {};
    };
    comm.add_hooks(std::move(hooks));
    ok(comm.all_to_all_v_single(output, input, out, mine));
    EXPECT_TRUE(seen);
  });
}

TEST(CommHooks, may_refuse_a_call_and_the_communicator_goes_on) {
  with_ranks(2, [](Comm& comm) {
    CommHooks hooks;
    hooks.before = [](const CommCall& call) -> Result<void> {
      if (call.operation == CommOperation::broadcast)
        return Error{Code::invalid_argument, "no broadcast today"};
      return {};
    };
    comm.add_hooks(std::move(hooks));
    std::vector<int> numbers{1};
    const auto refused = comm.broadcast(numbers, 0);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("no broadcast today"));
    ok(comm.barrier());
  });
}

TEST(CommHooks, hear_once_on_every_rank_that_the_communicator_has_ended) {
  with_ranks(3, [](Comm& comm) {
    HookLines lines;
    CommHooks hooks;
    std::atomic<int> told{0};
    hooks.aborted = [&told](const Error& cause) {
      ++told;
      EXPECT_THAT(cause.message, HasSubstr("enough"));
    };
    comm.add_hooks(std::move(hooks));
    ok(comm.barrier());
    if (comm.rank() == 1) comm.abort("enough");
    EXPECT_EQ(comm.barrier().code(), Code::canceled);
    comm.abort("again");
    EXPECT_EQ(told.load(), 1);
  });
}

TEST(CommHooks, may_let_go_of_the_communicator_on_its_own_thread) {
  const std::string name = unique_comm_name();
  std::promise<void> called;
  on_threads(2, [&](int rank) {
    std::optional<Comm> comm = must(Comm::open(rank_options(rank, 2, name)));
    if (rank == 1) {
      called.get_future().wait();
      return ok(comm->barrier());
    }
    std::promise<void> gone;
    CommHooks hooks;
    hooks.completed = [&](const CommCallId&, const Error&) {
      comm.reset();
      gone.set_value();
    };
    comm->add_hooks(std::move(hooks));
    const Work work = must(comm->barrier({.async = true}));
    called.set_value();
    gone.get_future().wait();
    must(work.wait());
  });
}

}  // namespace
}  // namespace headrace::test
