// SPDX-License-Identifier: Apache-2.0
// Hint `check`: the ranks compare what they call.
#include "collectives/call_card.hpp"
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <optional>

namespace headrace::test {
namespace {

using collectives::CallCard;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::map<std::string, std::string> checked{{"check", "on"}};

/// Expects the error on a rank, and that the communicator goes on.
void differs(Comm& comm, const Result<Work>& result, const std::string& text) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.code(), Code::invalid_argument);
  EXPECT_THAT(result.error().message, HasSubstr(text));
  EXPECT_FALSE(comm.is_aborted());
  std::vector<float> data(1000, 1);
  ok(comm.all_reduce(data, ReduceOp::sum));
  EXPECT_EQ(data[999], comm.size());
}

TEST(CommCheck, says_on_every_rank_which_ranks_call_what_and_the_communicator_goes_on) {
  with_ranks(
      3,
      [](Comm& comm) {
        std::vector<float> data(10);
        std::vector<std::int32_t> numbers(4);
        const auto result =
            comm.rank() == 1 ? comm.broadcast(numbers, 0) : comm.all_reduce(data, ReduceOp::sum);
        differs(
            comm, result,
            "ranks 0 and 2 call all_reduce of 10 float32 with sum, rank 1 calls broadcast of 4 int32 from "
            "root 0: all ranks must call the same operations");
      },
      checked);
}

TEST(CommCheck, finds_other_types_operations_roots_and_algorithms) {
  with_ranks(
      2,
      [](Comm& comm) {
        const bool first = comm.rank() == 0;
        std::vector<float> floats(8);
        std::vector<std::int32_t> ints(8);
        differs(comm, first ? comm.all_reduce(floats, ReduceOp::sum) : comm.all_reduce(ints, ReduceOp::sum),
                "rank 0 calls all_reduce of 8 float32 with sum, rank 1 calls all_reduce of 8 int32 with sum");
        differs(comm, comm.all_reduce(floats, first ? ReduceOp::min : ReduceOp(ReduceOp::premul_sum, 0.5)),
                "rank 1 calls all_reduce of 8 float32 with premul_sum by 0.5");
        differs(comm, comm.reduce(floats, comm.rank(), ReduceOp::sum),
                "rank 0 calls reduce of 8 float32 with sum to root 0");
        differs(
            comm,
            comm.all_reduce(floats, ReduceOp::sum,
                            {.hints = {{"algorithm", first ? "one_shot" : "two_shot"}}}),
            "rank 0 calls all_reduce of 8 float32 with sum (one_shot), rank 1 calls all_reduce of 8 float32 "
            "with sum (two_shot");
        differs(comm, first ? comm.barrier() : comm.broadcast(floats, 1),
                "rank 0 calls barrier, rank 1 calls broadcast of 8 float32 from root 1");
      },
      checked);
}

TEST(CommCheck, finds_counts_that_do_not_fit_and_names_the_two_ranks) {
  with_ranks(
      2,
      [](Comm& comm) {
        const bool first = comm.rank() == 0;
        std::vector<float> data(first ? 10 : 12);
        differs(comm, comm.all_reduce(data, ReduceOp::sum),
                "rank 0 calls all_reduce of 10 float32 with sum, rank 1 calls all_reduce of 12 float32 with "
                "sum; rank 0 gives rank 1 10 elements, which expects 12");
        differs(comm, comm.broadcast(data, 1), "rank 1 gives rank 0 12 elements, which expects 10");
        std::vector<float> input(5), output(5);
        const std::array<std::size_t, 2> splits{2, 3};
        differs(comm, comm.all_to_all_v_single(output, input, splits, splits),
                "rank 0 gives rank 1 3 elements, which expects 2");
      },
      checked);
}

TEST(CommCheck, lets_pass_every_operation_whose_counts_fit_also_in_its_other_forms) {
  with_ranks(
      2,
      [](Comm& comm) {
        const bool first = comm.rank() == 0;
        const std::size_t mine = first ? 3 : 5, others = 8 - mine;
        std::vector<float> a(3), b(5), own(mine), row(8), pair(4), two(2);
        const std::array<Elements, 2> gathered{Elements(a), Elements(b)};
        const std::array<ConstElements, 2> scattered{ConstElements(a), ConstElements(b)};
        ok(comm.all_gather_v(gathered, own));
        ok(comm.reduce_scatter_v(own, scattered, ReduceOp::sum));
        std::vector<float> left(2), right(2);
        const std::array<Elements, 2> halves{Elements(left), Elements(right)};
        ok(first ? comm.all_gather(halves, two) : comm.all_gather_single(pair, two));
        const std::array<ConstElements, 2> inputs{ConstElements(left), ConstElements(right)};
        ok(first ? comm.reduce_scatter(two, inputs, ReduceOp::sum)
                 : comm.reduce_scatter_single(two, pair, ReduceOp::sum));
        std::vector<float> to(4);
        ok(first ? comm.all_to_all(halves, inputs) : comm.all_to_all_single(to, pair));
        ok(first ? comm.gather(halves, two, 0) : comm.gather_single({}, two, 0));
        ok(comm.scatter(
            two, first ? std::span<const ConstElements>(inputs) : std::span<const ConstElements>(), 0));
        ok(comm.reduce(two, 1, ReduceOp::sum));
        // This rank keeps `mine` and gives the other one `others`.
        const std::array<std::size_t, 2> splits = first ? std::array{mine, others} : std::array{others, mine};
        const std::array<std::size_t, 2> wanted =
            first ? std::array{mine, std::size_t{3}} : std::array{std::size_t{5}, mine};
        std::vector<float> got(wanted[0] + wanted[1]);
        ok(comm.all_to_all_v_single(got, row, wanted, splits));
        must(comm.monitored_barrier());
        EXPECT_TRUE(must(comm.split(std::array{0, 1}, "part")).has_value());
      },
      checked);
}

TEST(CommCheck, compares_operations_that_are_asynchronous_and_split) {
  with_ranks(
      2,
      [](Comm& comm) {
        std::vector<float> data(10);
        if (comm.rank() == 0) {
          const Work work = must(comm.all_reduce(data, ReduceOp::sum, {.async = true}));
          const auto waited = work.wait();
          EXPECT_EQ(waited.code(), Code::invalid_argument);
          EXPECT_EQ(work.status(), WorkStatus::failed);
          EXPECT_THAT(waited.error().message, HasSubstr("rank 1 calls split"));
        } else {
          const auto part = comm.split(std::array{0, 1}, "part");
          EXPECT_EQ(part.code(), Code::invalid_argument);
          EXPECT_THAT(part.error().message, HasSubstr("rank 0 calls all_reduce of 10 float32 with sum"));
        }
        EXPECT_FALSE(comm.is_aborted());
        ok(comm.barrier());
      },
      checked);
}

TEST(CommCheck, must_be_the_same_on_all_ranks) {
  const std::string name = unique_comm_name();
  on_threads(3, [&](int rank) {
    CommOptions options = rank_options(rank, 3, name);
    options.hints["check"] = rank == 2 ? "on" : "off";
    const auto refused = Comm::open(options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr("rank 2 has"), HasSubstr("give all ranks the same hint check")));
  });
}

TEST(CommCheck, is_turned_on_by_the_variable_and_fixed_once_the_communicator_is_open) {
  ASSERT_EQ(::setenv("HEADRACE_CHECK", "1", 1), 0);
  std::vector<std::optional<Comm>> comms(2);
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    comms[static_cast<std::size_t>(rank)] = must(Comm::open(rank_options(rank, 2, name)));
  });
  ::unsetenv("HEADRACE_CHECK");
  on_threads(2, [&](int rank) {
    Comm& comm = *comms[static_cast<std::size_t>(rank)];
    EXPECT_THAT(comm.set_hints({{"check", "off"}}).error().message, HasSubstr("fixed"));
    std::vector<float> data(3);
    differs(comm, rank == 0 ? comm.barrier() : comm.broadcast(data, 0), "rank 0 calls barrier");
  });
}

CallCard card_of_splits() {
  CommCall call;
  call.operation = CommOperation::all_to_all_v_single;
  const std::array<std::size_t, 3> splits{1, 2, 3};
  std::vector<float> elements(6);
  const ConstElements in(elements);
  const Elements out(elements);
  call.inputs = {&in, 1};
  call.outputs = {&out, 1};
  call.input_splits = call.output_splits = splits;
  return collectives::card_of_call(call, 3, "some way");
}

TEST(CallCard, says_what_the_caller_thinks_of) {
  EXPECT_EQ(card_of_splits().text, "all_to_all_v_single of 6 float32");
}

TEST(CallCard, of_another_rank_cannot_lead_out_of_its_lists) {
  const CallCard card = card_of_splits();
  CallCard shorter = card;
  shorter.expects.resize(2);
  const auto found = collectives::difference(std::array{card, card, shorter});
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->message, Not(HasSubstr("rank 1 gives rank 0")));
  CallCard empty = card;
  empty.gives = empty.expects = {};
  EXPECT_FALSE(collectives::difference(std::array{empty, empty, empty}));
  const auto differ = collectives::difference(std::array{card, empty, shorter});
  ASSERT_TRUE(differ.has_value());
  EXPECT_THAT(differ->message, HasSubstr("elements, which expects"));
}

}  // namespace
}  // namespace headrace::test
