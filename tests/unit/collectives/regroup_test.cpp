// SPDX-License-Identifier: Apache-2.0
// Communicators that are made of other ones: of the ranks that are left, or of ranks that the caller brings
// together.
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <array>
#include <barrier>
#include <chrono>
#include <mutex>
#include <optional>

namespace headrace::test {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

void expect_all_add(Comm& comm) {
  std::vector<std::int64_t> numbers{comm.rank(), 1};
  ok(comm.all_reduce(numbers, ReduceOp::sum));
  EXPECT_THAT(numbers, ElementsAre(comm.size() * (comm.size() - 1) / 2, comm.size()));
}

/// What ranks that are threads of this process tell each other beside the communicator.
class Board {
 public:
  explicit Board(int ranks) : handles_(static_cast<std::size_t>(ranks)), all_(ranks) {}
  std::vector<std::string> exchange(int rank, std::string handle) {
    {
      const std::scoped_lock lock(mutex_);
      handles_[static_cast<std::size_t>(rank)] = std::move(handle);
    }
    all_.arrive_and_wait();
    const std::scoped_lock lock(mutex_);
    return handles_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> handles_;
  std::barrier<> all_;
};

TEST(Shrink, ranks_that_are_left_go_on_without_one_that_has_gone) {
  const std::string name = unique_comm_name();
  std::barrier begun(3);
  on_threads(3, [&](int rank) {
    std::optional<Comm> comm(must(Comm::open(rank_options(rank, 3, name))));
    expect_all_add(*comm);
    begun.arrive_and_wait();
    if (rank == 1) return comm.reset();
    EXPECT_FALSE(comm->barrier().ok());
    Comm left = must(comm->shrink(std::array{1}));
    EXPECT_EQ(left.size(), 2);
    EXPECT_EQ(left.rank(), rank == 0 ? 0 : 1);
    EXPECT_THAT(left.ranks(), ElementsAre(0, 2));
    EXPECT_EQ(left.name(), comm->name());
    comm.reset();
    expect_all_add(left);
    rank == 0 ? ok(left.send(std::vector<int>{7}, 1)) : [&] {
      std::vector<int> seven(1);
      ok(left.recv(seven, 0));
      EXPECT_EQ(seven[0], 7);
    }();
    must(left.finalize());
  });
}

TEST(Shrink, a_communicator_that_an_abort_has_ended_is_made_anew_of_all_its_ranks) {
  with_ranks(2, [](Comm& comm) {
    if (comm.rank() == 0) comm.abort("a try");
    EXPECT_FALSE(comm.barrier().ok());
    Comm again = must(comm.shrink({}));
    expect_all_add(again);
    Comm once_more = must(again.shrink({}));
    expect_all_add(once_more);
  });
}

TEST(Shrink, what_ranks_were_in_the_first_communicator_is_known_after_two) {
  std::barrier added(3);  // shrink aborts what another rank has not finished
  with_ranks(4, [&added](Comm& comm) {
    if (comm.rank() == 1) return static_cast<void>(comm.barrier());
    Comm three = must(comm.shrink(std::array{1}));
    EXPECT_THAT(three.ranks(), ElementsAre(0, 2, 3));
    expect_all_add(three);
    added.arrive_and_wait();
    if (three.rank() == 0) return static_cast<void>(three.barrier());
    Comm two = must(three.shrink(std::array{0}));
    EXPECT_THAT(two.ranks(), ElementsAre(2, 3));
    expect_all_add(two);
  });
}

TEST(Shrink, the_rank_that_is_left_out_is_told) {
  with_ranks(3, [](Comm& comm) {
    if (comm.rank() == 2) {
      const auto late = comm.barrier();
      EXPECT_EQ(late.code(), Code::canceled);
      EXPECT_THAT(late.error().message, HasSubstr("it goes on with ranks 0, 1 alone"));
      return;
    }
    Comm left = must(comm.shrink(std::array{2}));
    expect_all_add(left);
  });
}

TEST(Shrink, wrong_ranks_are_refused_and_end_nothing) {
  with_ranks(2, [](Comm& comm) {
    for (const int wrong : {comm.rank(), -1, 2}) {
      const auto refused = comm.shrink(std::array{wrong});
      ASSERT_EQ(refused.code(), Code::invalid_argument) << wrong;
      EXPECT_THAT(refused.error().message, HasSubstr("shrink of"));
      EXPECT_THAT(refused.error().message, HasSubstr("rank " + std::to_string(wrong)));
    }
    expect_all_add(comm);
  });
}

TEST(Shrink, a_rank_that_does_not_come_is_named_and_a_second_call_leaves_it_out) {
  with_ranks(3, [](Comm& comm) {
    if (comm.rank() == 2) return static_cast<void>(comm.barrier());  // it ends with the abort, and leaves
    SplitOptions soon;
    soon.meeting_timeout = std::chrono::milliseconds(300);
    const auto late = comm.shrink({}, soon);
    // Rank 2 is late, or it has left: before this call, or in the middle of it.
    ASSERT_THAT(late.code(), AnyOf(Code::timed_out, Code::peer_lost, Code::not_supported));
    EXPECT_THAT(late.error().message, HasSubstr("2"));
    Comm left = must(comm.shrink(std::array{2}));
    expect_all_add(left);
  });
}

TEST(Shrink, can_be_tried_again_with_the_same_ranks) {
  std::barrier tried(4);
  with_ranks(4, [&](Comm& comm) {
    SplitOptions soon;
    soon.meeting_timeout = std::chrono::milliseconds(300);
    if (comm.rank() < 2) {
      const auto late = comm.shrink(std::array{3}, soon);
      EXPECT_EQ(late.code(), Code::timed_out) << late.error().message;
      EXPECT_THAT(late.error().message, HasSubstr("waits for ranks that have not come: 2"));
    }
    tried.arrive_and_wait();
    if (comm.rank() == 3) return;
    Comm left = must(comm.shrink(std::array{3}));
    expect_all_add(left);
  });
}

TEST(Reconfigure, ranks_that_were_alone_become_a_communicator_and_newcomers_join_it) {
  Board two(2);
  Board three(3);
  on_threads(3, [&](int rank) {
    CommOptions options;
    options.name = "alone";
    options.hints = {{"backends", "shm"}};
    Comm alone = must(Comm::open(options));
    const std::string handle = must(alone.init_handle());
    std::optional<Comm> pair;
    if (rank < 2) {
      pair = must(alone.reconfigure("first", two.exchange(rank, handle)));
      EXPECT_EQ(pair->rank(), rank);
      expect_all_add(*pair);
    }
    // The newcomer becomes rank 0; a handle of the pair serves as well as that of the lone communicator.
    Comm all = must((pair ? *pair : alone).reconfigure("second", three.exchange((rank + 1) % 3, handle)));
    EXPECT_EQ(all.rank(), (rank + 1) % 3);
    EXPECT_EQ(all.size(), 3);
    pair.reset();
    alone.close();
    expect_all_add(all);
    must(all.finalize());
  });
}

TEST(Reconfigure, over_tcp_alone) {
  Board board(2);
  on_threads(2, [&](int rank) {
    CommOptions options;
    options.hints = {{"backends", "tcp"}};
    options.enable_reconfigure = true;
    Comm alone = must(Comm::open(options));
    Comm pair = must(alone.reconfigure("far", board.exchange(rank, must(alone.init_handle()))));
    expect_all_add(pair);
    std::vector<float> numbers(300'001, static_cast<float>(rank + 1));
    ok(pair.all_reduce(numbers, ReduceOp::sum));
    EXPECT_EQ(numbers.back(), 3);
    must(pair.finalize());
  });
}

TEST(Reconfigure, wrong_handles_are_refused) {
  CommOptions options;
  options.hints = {{"backends", "shm"}};
  Comm alone = must(Comm::open(options));
  Comm other = must(Comm::open(options));
  const std::string mine = must(alone.init_handle());
  const std::string theirs = must(other.init_handle());
  const auto error_of = [&](std::vector<std::string> handles) {
    const auto refused = alone.reconfigure("x", handles);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    return refused ? std::string() : refused.error().message;
  };
  EXPECT_THAT(error_of({mine, "nonsense"}), HasSubstr("handle 1 is none"));
  EXPECT_THAT(error_of({mine, ""}), HasSubstr("handle 1 is none"));
  EXPECT_THAT(error_of({mine, theirs, mine}), HasSubstr("handles 0 and 2 are of the same rank"));
  EXPECT_THAT(error_of({theirs}), HasSubstr("the handle of this rank is not among the 1 handles"));
  EXPECT_THAT(error_of({}), HasSubstr("not among the 0 handles"));
  alone.close();
  EXPECT_EQ(alone.init_handle().code(), Code::invalid_argument);
}

TEST(Reconfigure, a_rank_that_does_not_call_it_is_named) {
  CommOptions options;
  options.hints = {{"backends", "shm"}};
  Comm alone = must(Comm::open(options));
  Comm silent = must(Comm::open(options));
  SplitOptions soon;
  soon.meeting_timeout = std::chrono::milliseconds(200);
  const std::array handles{must(alone.init_handle()), must(silent.init_handle())};
  const auto late = alone.reconfigure("x", handles, soon);
  EXPECT_EQ(late.code(), Code::timed_out);
  EXPECT_THAT(late.error().message, HasSubstr("rank 1"));
  expect_all_add(alone);
}

}  // namespace
}  // namespace headrace::test
