// SPDX-License-Identifier: Apache-2.0
// What a caller may do about a call of its own: interrupt it, hear of its end, give it the owner of its
// memory.
#include "ranks.hpp"

#include <headrace/completion_queue.hpp>

#include <gmock/gmock.h>

#include <future>
#include <optional>

namespace headrace::test {
namespace {

using testing::HasSubstr;

/// Options whose hook answers with the flag, and counts how often it is asked.
struct Hook {
  std::atomic<bool> stop{false};
  std::atomic<int> asked{0};
  CommOptions options(int rank, int size, const std::string& name) {
    CommOptions options = rank_options(rank, size, name);
    options.interrupted = [this] {
      ++asked;
      return stop.load();
    };
    return options;
  }
};

/// The two ranks of a communicator; the first one has a hook.
struct Two {
  Hook hook;
  std::optional<Comm> first, second;
  Two() {
    const std::string name = unique_comm_name();
    on_threads(2, [&](int rank) {
      if (rank == 0)
        first.emplace(must(Comm::open(hook.options(0, 2, name))));
      else
        second.emplace(must(Comm::open(rank_options(1, 2, name))));
    });
  }
};

TEST(InterruptedCall, open_ends_while_another_rank_has_not_come) {
  for (const char* meeting : {"memory:nobody", "tcp://127.0.0.1:1"}) {
    Hook hook;
    hook.stop = true;
    CommOptions options = hook.options(1, 2, unique_comm_name());
    options.meeting = meeting;
    const auto comm = Comm::open(options);
    ASSERT_EQ(comm.code(), Code::canceled) << meeting;
    EXPECT_THAT(comm.error().message, HasSubstr("its caller interrupted it"));
  }
}

TEST(InterruptedCall, a_collective_ends_the_communicator_on_all_ranks) {
  Two ranks;
  ranks.hook.stop = true;
  std::vector<float> data(5, 1.0F);
  const auto work = ranks.first->all_reduce(data, ReduceOp::sum);
  ASSERT_EQ(work.code(), Code::canceled);
  EXPECT_THAT(work.error().message, HasSubstr("its caller interrupted it"));
  EXPECT_TRUE(ranks.first->is_aborted());
  const auto other = ranks.second->barrier();
  ASSERT_EQ(other.code(), Code::canceled);
  EXPECT_THAT(other.error().message,
              HasSubstr("rank 0, all_reduce number 2 of " + std::string("\"") + ranks.first->name()));
}

TEST(InterruptedCall, a_collective_behind_others_ends_too) {
  Two ranks;
  std::vector<float> data(5, 1.0F);
  const Work before = must(ranks.first->all_reduce(data, ReduceOp::sum, {.async = true}));
  ranks.hook.stop = true;
  EXPECT_EQ(ranks.first->barrier().code(), Code::canceled);
  EXPECT_EQ(before.wait().code(), Code::canceled);
}

TEST(InterruptedCall, a_receive_ends_alone) {
  Two ranks;
  ranks.hook.stop = true;
  std::vector<float> got(5);
  EXPECT_EQ(ranks.first->recv(got, 1).code(), Code::canceled);
  ranks.hook.stop = false;
  EXPECT_FALSE(ranks.first->is_aborted());
  std::vector<float> data(5, 1.0F);
  on_threads(2, [&](int rank) {
    if (rank == 0)
      ok(ranks.first->recv(got, 1));
    else
      ok(ranks.second->send(data, 0));
  });
  EXPECT_EQ(got, data);
}

TEST(InterruptedCall, finalize_leaves_without_the_operations_that_it_waits_for) {
  Two ranks;
  std::vector<float> data(5, 1.0F);
  const Work work = must(ranks.first->all_reduce(data, ReduceOp::sum, {.async = true}));
  ranks.hook.stop = true;
  EXPECT_EQ(ranks.first->finalize().code(), Code::canceled);
  EXPECT_EQ(work.status(), WorkStatus::aborted);
}

TEST(InterruptedCall, a_hook_that_says_no_is_asked_again_and_ends_nothing) {
  Two ranks;
  std::vector<float> data(5, 1.0F), others(5, 2.0F);
  auto other = std::async(std::launch::async, [&] {
    while (ranks.hook.asked < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ok(ranks.second->all_reduce(others, ReduceOp::sum));
  });
  ok(ranks.first->all_reduce(data, ReduceOp::sum));
  other.get();
  EXPECT_EQ(data[4], 3.0F);
}

TEST(EndOfWork, a_queue_gets_a_number_when_the_operation_has_ended) {
  Two ranks;
  const CompletionQueue queue = must(CompletionQueue::open());
  std::vector<float> data(5, 1.0F), got(5);
  const Work sum = must(ranks.first->all_reduce(data, ReduceOp::sum, {.async = true}));
  const Work message = must(ranks.first->recv(got, 1, {.async = true}));
  sum.on_end([queue] { queue.put(1); });
  message.on_end([queue] { queue.put(2); });
  EXPECT_TRUE(queue.take().empty());
  std::vector<float> others(5, 2.0F);
  ok(ranks.second->all_reduce(others, ReduceOp::sum));
  must(sum.wait());
  ok(ranks.second->send(others, 0));
  must(message.wait());
  std::vector<std::uint64_t> numbers;
  while (numbers.size() < 2)
    for (const std::uint64_t number : queue.take()) numbers.push_back(number);
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{1, 2}));
  message.on_end([queue] { queue.put(3); });  // it has ended
  EXPECT_EQ(queue.take(), (std::vector<std::uint64_t>{3}));
  Work().on_end([queue] { queue.put(4); });
  EXPECT_EQ(queue.take(), (std::vector<std::uint64_t>{4}));
}

TEST(EndOfWork, the_owner_of_the_memory_is_kept_until_then_though_the_work_is_dropped) {
  Two ranks;
  auto data = std::make_shared<std::vector<float>>(5, 1.0F);
  auto got = std::make_shared<std::vector<float>>(5);
  const std::weak_ptr<std::vector<float>> sum_memory = data, message_memory = got;
  must(ranks.first->all_reduce(*data, ReduceOp::sum, {.async = true, .owner = data}));
  must(ranks.first->recv(*got, 1, {.async = true, .owner = got}));
  data.reset();
  got.reset();
  EXPECT_FALSE(sum_memory.expired());
  EXPECT_FALSE(message_memory.expired());
  std::vector<float> others(5, 2.0F);
  ok(ranks.second->all_reduce(others, ReduceOp::sum));
  while (!sum_memory.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(message_memory.expired());
  ranks.first->abort();
  while (!message_memory.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(Close, aborts_what_is_under_way_and_refuses_later_operations) {
  Two ranks;
  std::vector<float> data(5, 1.0F);
  const Work work = must(ranks.first->all_reduce(data, ReduceOp::sum, {.async = true}));
  ranks.first->close();
  EXPECT_EQ(work.status(), WorkStatus::aborted);
  EXPECT_THAT(ranks.first->barrier().error().message, HasSubstr("has been finalized"));
  EXPECT_EQ(ranks.second->barrier().code(), Code::canceled);
}

TEST(Split, has_hints_and_a_timeout_of_its_own) {
  Two ranks;
  std::optional<Comm> children[2];
  on_threads(2, [&](int rank) {
    Comm& comm = rank == 0 ? *ranks.first : *ranks.second;
    const SplitOptions changes{.hints = {{"lane_bytes", "64KiB"}}, .timeout = std::chrono::milliseconds(50)};
    auto& child = children[rank] = must(comm.split(std::vector<int>{0, 1}, "child", changes));
    ASSERT_TRUE(child.has_value());
    EXPECT_EQ(child->options().hints.at("lane_bytes"), "64KiB");
    std::vector<float> data(100'000, 1.0F);
    ok(child->all_reduce(data, ReduceOp::sum, {.timeout = std::chrono::seconds(60)}));
    EXPECT_EQ(data[99'999], 2.0F);
    EXPECT_THAT(comm.options().timeout, testing::Optional(std::chrono::seconds(60)));
  });
  EXPECT_EQ(children[0]->barrier().code(), Code::timed_out);
}

TEST(Split, refuses_hints_before_it_tells_another_rank) {
  Two ranks;
  const auto unknown = ranks.first->split(std::vector<int>{0}, "child", {.hints = {{"lane_byte", "1"}}});
  EXPECT_THAT(unknown.error().message, HasSubstr("lane_bytes"));
  const auto fixed = ranks.first->split(std::vector<int>{0}, "child", {.hints = {{"backends", "tcp"}}});
  EXPECT_THAT(fixed.error().message, HasSubstr("opened first"));
  EXPECT_FALSE(ranks.second->is_aborted());
}

}  // namespace
}  // namespace headrace::test
