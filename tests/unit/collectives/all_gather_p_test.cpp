// SPDX-License-Identifier: Apache-2.0
// all_gather whose arguments are checked once.
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>

namespace headrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(PersistentAllGather, gathers_as_often_as_it_is_executed) {
  with_ranks(3, [](Comm& comm) {
    std::vector<std::int32_t> output(30), input(10);
    const AllGatherHandle handle = must(comm.all_gather_p_init(output));
    for (int turn = 0; turn < 3; ++turn) {
      std::ranges::fill(input, comm.rank() + 10 * turn);
      const Work work = must(comm.all_gather_p_exec(handle, input, {.async = turn == 1}));
      must(work.wait());
      for (int rank = 0; rank < 3; ++rank)
        EXPECT_EQ(output[static_cast<std::size_t>(rank) * 10 + 9], rank + 10 * turn);
    }
    must(comm.all_gather_p_free(handle));
  });
}

TEST(PersistentAllGather, takes_its_input_from_its_place_in_the_output) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> output(8);
    const AllGatherHandle handle = must(comm.all_gather_p_init(output));
    const auto mine = std::span(output).subspan(static_cast<std::size_t>(comm.rank()) * 4, 4);
    std::ranges::fill(mine, static_cast<float>(comm.rank() + 1));
    ok(comm.all_gather_p_exec(handle, mine));
    EXPECT_EQ(output, (std::vector<float>{1, 1, 1, 1, 2, 2, 2, 2}));
  });
}

TEST(PersistentAllGather, refuses_what_does_not_fit_and_ends_nothing) {
  std::optional<AllGatherHandle> foreign;
  with_ranks(1, [&](Comm& comm) {
    std::vector<float> output(4);
    foreign = must(comm.all_gather_p_init(output));
  });
  with_ranks(2, [&](Comm& comm) {
    std::vector<float> output(8), odd(7), input(4), shorter(3);
    std::vector<std::int32_t> ints(4);
    EXPECT_THAT(comm.all_gather_p_init(odd).error().message, HasSubstr("7 elements for 2 ranks"));
    EXPECT_EQ(comm.all_gather_p_init({nullptr, 8, DType::float32}).code(), Code::invalid_argument);
    const AllGatherHandle handle = must(comm.all_gather_p_init(output));
    EXPECT_THAT(comm.all_gather_p_exec(handle, shorter).error().message,
                AllOf(HasSubstr("all_gather_single of"), HasSubstr("3 float32"), HasSubstr("4 float32")));
    EXPECT_THAT(comm.all_gather_p_exec(handle, ints).error().message, HasSubstr("4 int32"));
    EXPECT_THAT(comm.all_gather_p_exec(*foreign, input).error().message, HasSubstr("another communicator"));
    EXPECT_EQ(comm.all_gather_p_free(*foreign).code(), Code::invalid_argument);
    EXPECT_THAT(comm.all_gather_p_exec({}, input).error().message, HasSubstr("another communicator"));
    ok(comm.all_gather_p_exec(handle, input));
    must(comm.all_gather_p_free(handle));
    EXPECT_THAT(comm.all_gather_p_exec(handle, input).error().message, HasSubstr("has been freed"));
    EXPECT_EQ(comm.all_gather_p_free(handle).code(), Code::invalid_argument);
    ok(comm.barrier());
  });
}

}  // namespace
}  // namespace headrace::test
