// SPDX-License-Identifier: Apache-2.0
// device_all_to_all_v_single: splits that lie in elements and are read when the operation begins.
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <numeric>
#include <span>

namespace headrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

using SplitNumbers = std::vector<std::int64_t>;

/// What rank `from` gives rank `to`: none, few, or more than a lane holds.
std::int64_t given(int from, int to) {
  constexpr std::array<std::int64_t, 5> counts{3, 0, 40'001, 1, 1000};
  return counts[static_cast<std::size_t>(from * 3 + to) % counts.size()];
}
double number(int from, int to, std::size_t i) {
  return from * 1e6 + to * 1e5 + static_cast<double>(i % 1000);
}

SplitNumbers splits_of(int size, const std::function<std::int64_t(int)>& of) {
  SplitNumbers splits;
  for (int rank = 0; rank < size; ++rank) splits.push_back(of(rank));
  return splits;
}
std::size_t total(const SplitNumbers& splits) {
  return static_cast<std::size_t>(std::accumulate(splits.begin(), splits.end(), std::int64_t{0}));
}

std::vector<double> input_of(int rank, const SplitNumbers& splits) {
  std::vector<double> input;
  for (std::size_t to = 0; to < splits.size(); ++to)
    for (std::int64_t i = 0; i < splits[to]; ++i)
      input.push_back(number(rank, static_cast<int>(to), static_cast<std::size_t>(i)));
  return input;
}

class DeviceSplits : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceSplits, testing::Values(1, 2, 3));

TEST_P(DeviceSplits, move_each_ranks_share_and_leave_what_lies_behind) {
  const int size = GetParam();
  with_ranks(size, [&](Comm& comm) {
    const int me = comm.rank();
    const SplitNumbers give = splits_of(size, [&](int to) { return given(me, to); });
    const SplitNumbers get = splits_of(size, [&](int from) { return given(from, me); });
    std::vector<double> input = input_of(me, give);
    input.resize(input.size() + 5, -2);
    std::vector<double> output(total(get) + 7, -1);
    ok(comm.device_all_to_all_v_single(output, input, get, give));
    std::size_t next = 0;
    for (int from = 0; from < size; ++from)
      for (std::int64_t i = 0; i < given(from, me); ++i)
        ASSERT_EQ(output[next++], number(from, me, static_cast<std::size_t>(i))) << from << " " << i;
    for (; next < output.size(); ++next) EXPECT_EQ(output[next], -1);
  });
}

TEST_P(DeviceSplits, are_read_at_the_turn_of_an_operation_that_was_called_before_they_were_known) {
  const int size = GetParam();
  with_ranks(size, [&](Comm& comm) {
    const int me = comm.rank();
    OpOptions async;
    async.async = true;
    const SplitNumbers give = splits_of(size, [&](int to) { return given(me, to); });
    SplitNumbers get(static_cast<std::size_t>(size), -1);
    const std::vector<double> input = input_of(me, give);
    std::vector<double> output(3 * 40'001);
    // The ranks tell each other the splits by the operation before.
    const Work told = must(comm.all_to_all_single(get, give, async));
    const Work moved = must(comm.device_all_to_all_v_single(output, input, get, give, async));
    must(told.wait());
    must(moved.wait());
    std::size_t next = 0;
    for (int from = 0; from < size; ++from)
      for (std::int64_t i = 0; i < given(from, me); ++i)
        ASSERT_EQ(output[next++], number(from, me, static_cast<std::size_t>(i)));
  });
}

TEST(DeviceSplitsCheck, let_the_operation_pass_where_calls_are_compared) {
  with_ranks(2,
             [](Comm& comm) {
               const SplitNumbers give = splits_of(2, [&](int to) { return comm.rank() + to; });
               const SplitNumbers get = splits_of(2, [&](int from) { return from + comm.rank(); });
               const std::vector<double> input = input_of(comm.rank(), give);
               std::vector<double> output(4);
               ok(comm.device_all_to_all_v_single(output, input, get, give));
               EXPECT_EQ(output[0], comm.rank() == 0 ? number(1, 0, 0) : number(0, 1, 0));
               std::vector<double> same(2);
               const auto differs = comm.rank() == 0
                                        ? comm.device_all_to_all_v_single(output, input, get, give)
                                        : comm.all_to_all_single(same, same);
               ASSERT_FALSE(differs.ok());
               EXPECT_THAT(differs.error().message, HasSubstr("rank 0 calls device_all_to_all_v_single of"));
             },
             {{"check", "on"}});
}

/// Rank 0 gives wrong splits of ten elements; a byte beside its output would be seen.
void expect_refusal(const SplitNumbers& get, const SplitNumbers& give, const char* why) {
  with_ranks(2, [&](Comm& comm) {
    std::array<double, 12> room;
    room.fill(-1);
    const std::vector<double> input(10, 5);
    const SplitNumbers fitting{5, 5};
    const bool wrong = comm.rank() == 0;
    const auto refused =
        comm.device_all_to_all_v_single(std::span(room).subspan(1, 10), input, wrong ? get : fitting,
                                        wrong ? give : fitting, {.timeout = 30s});
    if (!wrong && refused.ok()) return;  // its part had come before
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr("device_all_to_all_v_single number 2"), HasSubstr(why)));
    EXPECT_TRUE(comm.is_aborted());
    if (wrong) {
      EXPECT_EQ(std::ranges::count(room, -1), 12) << why;
    }
    EXPECT_EQ(room.front(), -1);
    EXPECT_EQ(room.back(), -1);
  });
}

TEST(DeviceSplitsErrors, name_the_values_and_end_the_communicator_with_nothing_written) {
  expect_refusal({5, 6}, {5, 5},
                 "the output split for rank 1 is 6, and 5 of the output's 10 elements are left");
  expect_refusal({11, 0}, {5, 5}, "the output split for rank 0 is 11, and 10 of the output's 10 elements");
  expect_refusal({5, -1}, {5, 5}, "the output split for rank 1 is -1");
  expect_refusal({5, 5}, {INT64_MAX, 5}, "the input split for rank 0 is 9223372036854775807");
  expect_refusal({5, 5}, {INT64_MIN, 5}, "the input split for rank 0 is -9223372036854775808");
  expect_refusal({5, 5}, {5, 6}, "the input split for rank 1 is 6");
  expect_refusal({5, 5}, {4, 5}, "the output split for this rank is 5, its input split 4");
}

TEST(DeviceSplitsErrors, of_ranks_that_do_not_agree_are_found_by_the_receiver) {
  with_ranks(2, [](Comm& comm) {
    const std::vector<double> input(10);
    std::vector<double> output(10);
    const SplitNumbers get{comm.rank() == 0 ? 5 : 4, comm.rank() == 0 ? 4 : 5}, give{5, 5};
    const auto refused = comm.device_all_to_all_v_single(output, input, get, give, {.timeout = 30s});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("sends 40 bytes and 32 were expected"));
  });
}

TEST(DeviceSplitsErrors, before_the_operation_begins_end_nothing) {
  with_ranks(2, [](Comm& comm) {
    std::vector<double> output(2);
    const std::vector<double> input(2);
    const SplitNumbers two{1, 1}, three{1, 1, 0};
    const std::vector<float> floats(2);
    const auto refused = [&](const Result<Work>& result, const char* why) {
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.code(), Code::invalid_argument);
      EXPECT_THAT(result.error().message, HasSubstr(why));
    };
    refused(comm.device_all_to_all_v_single(output, input, floats, two),
            "the splits of the output are float32: int64 is expected");
    refused(comm.device_all_to_all_v_single(output, input, two, three), "the input has 3 splits for 2 ranks");
    refused(comm.device_all_to_all_v_single(output, input, two, {nullptr, 2, DType::int64}),
            "a null address");
    refused(comm.device_all_to_all_v_single(output, floats, two, two), "is float32");
    ok(comm.device_all_to_all_v_single(output, input, two, two));
  });
}

}  // namespace
}  // namespace headrace::test
