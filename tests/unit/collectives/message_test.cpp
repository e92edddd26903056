// SPDX-License-Identifier: Apache-2.0
// Sends and receives between ranks.
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <numeric>

namespace headrace::test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

MessageOptions tagged(std::uint32_t tag, bool async = false) {
  MessageOptions options;
  options.tag = tag;
  options.async = async;
  return options;
}

std::vector<std::int32_t> numbers(std::size_t count, int first) {
  std::vector<std::int32_t> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

TEST(Messages, of_every_size_arrive_in_order) {
  with_ranks(2, [](Comm& comm) {
    for (const std::size_t count : {0UL, 1UL, 10UL, 11UL, 1000UL, 300'000UL}) {
      for (int turn = 0; turn < 3; ++turn) {
        if (comm.rank() == 0) {
          ok(comm.send(numbers(count, turn), 1));
        } else {
          std::vector<std::int32_t> got(count);
          ok(comm.recv(got, 0));
          EXPECT_EQ(got, numbers(count, turn)) << count;
        }
      }
    }
  });
}

TEST(Messages, two_ranks_that_both_send_first_or_both_receive_first_do_not_block_each_other) {
  with_ranks(2,
             [](Comm& comm) {
               const int other = 1 - comm.rank();
               // More than lanes and kept messages hold.
               const auto data = numbers(500'000, comm.rank());
               for (const bool send_first : {true, false}) {
                 std::vector<std::int32_t> got(data.size());
                 Work sent, received;
                 if (send_first) sent = must(comm.send(data, other, tagged(1, true)));
                 received = must(comm.recv(got, other, tagged(1, true)));
                 if (!send_first) sent = must(comm.send(data, other, tagged(1, true)));
                 must(sent.wait());
                 must(received.wait());
                 EXPECT_EQ(received.source(), other);
                 EXPECT_EQ(got, numbers(data.size(), other));
               }
             },
             {{"unexpected_bytes", "1MiB"}});
}

TEST(Messages, a_receive_in_vain_names_the_tags_that_have_come) {
  with_ranks(2, [](Comm& comm) {
    if (comm.rank() == 0) {
      for (const std::uint32_t tag : {7, 9, 7}) ok(comm.send(numbers(3, 1), 1, tagged(tag)));
      ok(comm.barrier());
      return ok(comm.barrier());  // it stays until the other rank has looked
    }
    ok(comm.barrier());
    std::vector<int> got(3);
    MessageOptions options = tagged(5);
    options.timeout = std::chrono::milliseconds(50);
    for (const int source : {0, any_source}) {
      const auto late = comm.recv(got, source, options);
      EXPECT_EQ(late.code(), Code::timed_out);
      EXPECT_THAT(late.error().message,
                  HasSubstr("; this recv has tag 5, and messages have come with tag 7, 9: give"));
    }
    ok(comm.recv(got, 0, tagged(9)));
    for (int i = 0; i < 2; ++i) ok(comm.recv(got, 0, tagged(7)));
    EXPECT_THAT(comm.recv(got, 0, options).error().message, testing::Not(HasSubstr("tag")));
    ok(comm.barrier());
  });
}

TEST(Messages, a_tag_is_found_behind_others) {
  with_ranks(2, [](Comm& comm) {
    if (comm.rank() == 0) {
      for (int tag = 0; tag < 5; ++tag)
        ok(comm.send(numbers(100, tag), 1, tagged(static_cast<std::uint32_t>(tag))));
      ok(comm.barrier());
      return;
    }
    ok(comm.barrier());
    for (const int tag : {3, 0, 4, 2, 1}) {
      std::vector<std::int32_t> got(100);
      ok(comm.recv(got, 0, tagged(static_cast<std::uint32_t>(tag))));
      EXPECT_EQ(got, numbers(100, tag));
    }
  });
}

TEST(Messages, any_source_takes_each_message_once_and_says_whose_it_was) {
  with_ranks(3, [](Comm& comm) {
    if (comm.rank() != 0) return ok(comm.send(numbers(50, comm.rank() * 100), 0, tagged(9)));
    int seen = 0;
    for (int i = 0; i < 2; ++i) {
      std::vector<std::int32_t> got(50);
      const Work work = must(comm.recv(got, any_source, tagged(9)));
      EXPECT_EQ(got, numbers(50, work.source() * 100));
      seen += work.source();
    }
    EXPECT_EQ(seen, 3);
  });
}

TEST(Messages, go_on_while_collectives_wait) {
  with_ranks(2,
             [](Comm& comm) {
               std::vector<float> data(10, 1), got(400'000);
               const std::vector<float> large(400'000, 5);
               if (comm.rank() == 0) {
                 const Work sent = must(comm.send(large, 1, tagged(1, true)));
                 ok(comm.all_reduce(data, ReduceOp::sum));  // rank 1 comes after it has received
                 must(sent.wait());
               } else {
                 ok(comm.recv(got, 0, tagged(1)));
                 EXPECT_EQ(got, large);
                 ok(comm.all_reduce(data, ReduceOp::sum));
               }
               EXPECT_EQ(data[9], 2);
             },
             {{"unexpected_bytes", "0"}});
}

TEST(Messages, that_nobody_has_asked_for_yet_are_kept_while_a_collective_waits) {
  with_ranks(2, [](Comm& comm) {
    const auto data = numbers(300'000, 5);  // more than a lane holds
    std::vector<std::int32_t> got(data.size());
    if (comm.rank() == 0) ok(comm.send(data, 1));
    ok(comm.barrier());
    if (comm.rank() == 0) return;
    ok(comm.recv(got, 0));
    EXPECT_EQ(got, data);
  });
}

TEST(Messages, that_are_empty_count_among_those_that_are_kept) {
  with_ranks(2,
             [](Comm& comm) {
               constexpr int count = 1000;
               const Elements nothing(nullptr, 0, DType::uint8);
               MessageOptions options;
               options.async = true;
               std::vector<Work> sent;
               for (int i = 0; comm.rank() == 0 && i < count; ++i)
                 sent.push_back(must(comm.send(nothing, 1, options)));
               // Rank 1 takes messages while it is in the barrier.
               if (comm.rank() == 0) {
                 EXPECT_EQ(sent.back().wait(std::chrono::milliseconds(100)).code(), Code::timed_out);
               }
               ok(comm.barrier());
               for (int i = 0; comm.rank() == 1 && i < count; ++i) ok(comm.recv(nothing, 0));
               for (const Work& work : sent) must(work.wait());
             },
             {{"unexpected_bytes", "4096"}});
}

TEST(Messages, one_of_another_length_fails_its_receive_alone) {
  with_ranks(2, [](Comm& comm) {
    if (comm.rank() == 0) {
      ok(comm.send(numbers(10, 0), 1));
      ok(comm.send(numbers(20, 7), 1));
      return ok(comm.barrier());
    }
    std::vector<std::int32_t> got(20);
    const auto wrong = comm.recv(got, 0);
    ASSERT_FALSE(wrong.ok());
    EXPECT_EQ(wrong.code(), Code::invalid_argument);
    EXPECT_THAT(wrong.error().message,
                HasSubstr("the message of rank 0 has 40 bytes, the elements to receive have 80"));
    ok(comm.recv(got, 0));
    EXPECT_EQ(got, numbers(20, 7));
    ok(comm.barrier());
  });
}

TEST(Messages, a_receive_that_is_late_ends_alone) {
  with_ranks(2, [](Comm& comm) {
    std::vector<std::int32_t> got(5);
    MessageOptions soon;
    soon.timeout = 20ms;
    const auto late = comm.recv(got, 1 - comm.rank(), soon);
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.code(), Code::timed_out);
    EXPECT_THAT(late.error().message, HasSubstr("recv number 1"));
    EXPECT_THAT(late.error().message, HasSubstr("has not come within 20 ms"));
    soon.async = true;
    const Work work = must(comm.recv(got, any_source, soon));
    EXPECT_EQ(work.wait().code(), Code::timed_out);
    EXPECT_EQ(work.status(), WorkStatus::timed_out);
    EXPECT_FALSE(comm.is_aborted());
    ok(comm.barrier());
  });
}

}  // namespace
}  // namespace headrace::test
