// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: this program starts itself again for each. A rank is killed or stopped, and the others
// say what they got.
#include "rank_processes.hpp"

#include <headrace/comm_window.hpp>

#include <gmock/gmock.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>

namespace headrace::test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

/// What a rank does in its process: a line of text for the test.
using Program = std::string (*)(Comm&);

/// Rank 1 ends without a word in the middle.
std::string one_dies(Comm& comm) {
  std::vector<float> data(1'000'000, 1);
  for (int i = 0;; ++i) {
    if (comm.rank() == 1 && i == 5) ::kill(::getpid(), SIGKILL);
    if (const auto done = comm.all_reduce(data, ReduceOp::max); !done.ok()) return text_of(done);
  }
}

/// The same, and those that are left go on without it. Rank 0, where the ranks met, is the one that dies.
std::string the_first_dies_and_the_others_go_on(Comm& comm) {
  std::vector<float> data(1000, 1);
  for (int i = 0;; ++i) {
    if (comm.rank() == 0 && i == 5) ::kill(::getpid(), SIGKILL);
    if (!comm.all_reduce(data, ReduceOp::max).ok()) break;
  }
  const std::array gone{0};
  auto left = comm.shrink(gone);
  if (!left.ok()) return left.error().message;
  return work_through(*left);
}

/// Rank 1 stands still.
std::string one_stops(Comm& comm) {
  std::vector<float> data(100, 1);
  comm.set_timeout(300ms);
  if (comm.rank() == 1) ::kill(::getpid(), SIGSTOP);
  return text_of(comm.all_reduce(data, ReduceOp::sum));
}

/// Rank 1 does not come, and rank 0 was opened with abort_on_error.
std::string one_aborts(Comm& comm) {
  std::vector<float> data(100, 1);
  comm.set_timeout(100ms);
  if (comm.rank() == 1)
    while (!comm.is_aborted()) std::this_thread::sleep_for(1ms);
  return text_of(comm.all_reduce(data, ReduceOp::sum));
}

/// All ranks change the same elements of all.
std::string add_in_window(Comm& comm) {
  constexpr int rounds = 50;
  Window window = must(comm.new_window());
  const Elements mine = must(window.allocate(1, DType::int32));
  for (int round = 0; round < rounds; ++round)
    for (int rank = 0; rank < comm.size(); ++rank) {
      if (const auto added = window.atomic_add(rank, 0, rank + 1); !added.ok()) return text_of(added);
      if (const auto sent = window.signal(rank); !sent.ok()) return text_of(sent);
    }
  for (int rank = 0; rank < comm.size(); ++rank)
    if (const auto all = window.wait_signal(rank, {Comparison::eq, rounds}); !all.ok()) return text_of(all);
  if (*static_cast<std::int32_t*>(mine.data) != rounds * comm.size() * (comm.rank() + 1))
    return "a wrong sum";
  const auto closed = window.tensor_deregister();
  return closed.ok() ? "all right" : text_of(closed);
}

/// Rank 1 ends without a word while rank 0 waits for its signal and rank 2 puts.
std::string one_dies_in_window(Comm& comm) {
  Window window = must(comm.new_window());
  must(window.allocate(100'000, DType::float32));
  if (comm.rank() == 1) ::kill(::getpid(), SIGKILL);
  if (comm.rank() == 0) return text_of(window.wait_signal(1));
  const std::vector<float> data(100'000);
  while (true)
    if (const auto done = window.put(data, 1, 0); !done.ok()) return text_of(done);
}

/// Rank 1 stands still, and answers no question.
std::string one_stops_in_window(Comm& comm) {
  Window window = must(comm.new_window());
  must(window.allocate(100'000, DType::int64));
  ok(comm.barrier());
  if (comm.rank() == 1) ::kill(::getpid(), SIGSTOP);
  comm.set_timeout(300ms);
  while (true) {
    const auto added = window.atomic_add(1, 0, 1);
    if (added.ok()) continue;
    comm.abort("rank 1 will not answer");  // no one waits for it at the end
    return text_of(added);
  }
}

/// Rank 1 stops, and the test lets it go on: meanwhile it is asked again and again for the same addition.
std::string one_pauses_in_window(Comm& comm) {
  using Clock = std::chrono::steady_clock;
  Window window = must(comm.new_window());
  const Elements mine = must(window.allocate(1, DType::int64));
  if (comm.rank() == 1) {
    // Once it has been added to, the question that will be open is another addition.
    const std::atomic_ref<std::int64_t> sum(*static_cast<std::int64_t*>(mine.data));
    while (sum.load() < 10) std::this_thread::sleep_for(1ms);
    ::kill(::getpid(), SIGSTOP);
    must(window.wait_signal(0));
    return "all right";
  }
  std::int64_t added = 0;
  for (bool paused = false; !paused; ++added) {
    const auto begin = Clock::now();
    const std::int64_t before = must(window.atomic_add(1, 0, 1));
    if (before != added) return "added " + std::to_string(added) + " times, not " + std::to_string(before);
    paused = added >= 10 && Clock::now() - begin > 300ms;  // sooner it is the machine that is slow
  }
  std::vector<std::int64_t> sum(1);
  ok(window.get(sum, 1, 0));
  ok(window.signal(1));
  return sum[0] == added ? "all right" : "a wrong sum";
}

struct Row {
  const char* name;
  Program program;
  const char* backends;
};
constexpr std::array programs{Row{"work_through", work_through, "shm,tcp"},
                              Row{"one_dies", one_dies, "shm,tcp"},
                              Row{"the_first_dies", the_first_dies_and_the_others_go_on, "shm,tcp"},
                              Row{"one_stops", one_stops, "shm,tcp"},
                              Row{"one_aborts", one_aborts, "shm,tcp"},
                              Row{"add_in_window", add_in_window, "shm,tcp"},
                              Row{"add_in_window_far", add_in_window, "tcp"},
                              Row{"one_dies_in_window", one_dies_in_window, "shm,tcp"},
                              Row{"one_dies_in_window_far", one_dies_in_window, "tcp"},
                              Row{"one_stops_in_window_far", one_stops_in_window, "tcp"},
                              Row{"one_pauses_in_window_far", one_pauses_in_window, "tcp"}};

/// The main function of a rank: NAME RANK SIZE FOLDER. Its line goes into FOLDER/RANK.
int run_rank(char** words) {
  if (is_faulty_program(words[0])) return run_faulty_rank(words);
  if (is_p2p_program(words[0])) return run_p2p_rank(words);
  if (is_oneccl_program(words[0])) return run_oneccl_rank(words);
  CommOptions options;
  options.rank = std::stoi(words[1]);
  options.size = std::stoi(words[2]);
  const std::string folder = words[3];
  options.meeting = "file://" + folder + "/store";
  options.timeout = 60s;
  options.abort_on_error = std::string(words[0]) == "one_aborts" && options.rank == 0;
  std::string line = "no such program";
  for (const Row& row : programs) {
    if (std::string(words[0]) != row.name) continue;
    options.hints["backends"] = row.backends;
    auto comm = Comm::open(options);
    line = comm.ok() ? row.program(*comm) : comm.error().message;
  }
  std::ofstream(folder + "/" + words[1]) << line;
  return 0;
}

TEST(CommProcesses, reduce_and_exchange_elements) {
  for (const int size : {2, 3}) {
    RankProcesses ranks("work_through", size);
    for (int rank = 0; rank < size; ++rank)
      EXPECT_EQ(ranks.line_of(static_cast<std::size_t>(rank)), "all right");
  }
}

TEST(CommProcesses, every_rank_learns_which_one_was_killed) {
  RankProcesses ranks("one_dies", 3);
  for (const std::size_t rank : {0UL, 2UL}) {
    const std::string line = ranks.line_of(rank);
    EXPECT_THAT(line, HasSubstr("peer_lost: rank " + std::to_string(rank) + ", all_reduce number"));
    EXPECT_THAT(line, HasSubstr("rank 1 is gone"));
  }
}

TEST(CommProcesses, those_that_are_left_go_on_without_the_first_rank) {
  RankProcesses ranks("the_first_dies", 3);
  for (const std::size_t rank : {1UL, 2UL}) EXPECT_EQ(ranks.line_of(rank), "all right");
}

TEST(CommProcesses, a_rank_that_stands_still_is_named_when_the_operation_is_late) {
  RankProcesses ranks("one_stops", 2);
  const std::string line = ranks.line_of(0);
  EXPECT_THAT(line, HasSubstr("timed_out: rank 0, all_reduce number 2"));
  EXPECT_THAT(line, HasSubstr("rank 1 has not come within 300 ms"));
}

TEST(CommProcesses, a_process_ends_when_an_operation_fails_if_that_was_asked_for) {
  RankProcesses ranks("one_aborts", 2);
  EXPECT_EQ(ranks.signal_of(0), SIGABRT);
  EXPECT_THAT(ranks.line_of(1), HasSubstr("rank 1 has not come within 100 ms"));
}

TEST(WindowProcesses, change_the_same_words_at_once_and_lose_no_change) {
  for (const char* program : {"add_in_window", "add_in_window_far"}) {
    RankProcesses ranks(program, 3);
    for (const std::size_t rank : {0UL, 1UL, 2UL}) EXPECT_EQ(ranks.line_of(rank), "all right") << program;
  }
}

TEST(WindowProcesses, every_rank_that_waits_for_a_killed_one_or_puts_to_it_is_told_which_it_was) {
  for (const char* program : {"one_dies_in_window", "one_dies_in_window_far"}) {
    RankProcesses ranks(program, 3);
    for (const std::size_t rank : {0UL, 2UL}) {
      const std::string line = ranks.line_of(rank);
      EXPECT_THAT(line, HasSubstr("peer_lost: rank " + std::to_string(rank) +
                                  (rank == 0 ? ", wait_signal number" : ", put number")))
          << program;
      EXPECT_THAT(line, HasSubstr("window 1: rank 1 is gone")) << program;
    }
  }
}

TEST(WindowProcesses, a_question_that_is_asked_again_is_carried_out_once) {
  RankProcesses ranks("one_pauses_in_window_far", 2);
  ranks.resume(1, 500ms);
  for (const std::size_t rank : {0UL, 1UL}) EXPECT_EQ(ranks.line_of(rank), "all right");
}

TEST(WindowProcesses, a_far_rank_that_stands_still_is_named_when_an_operation_is_late) {
  RankProcesses ranks("one_stops_in_window_far", 2);
  const std::string line = ranks.line_of(0);
  EXPECT_THAT(line, HasSubstr("timed_out: rank 0, atomic_add number"));
  EXPECT_THAT(line, HasSubstr("window 1: rank 1 has not answered within 300 ms"));
}

}  // namespace
}  // namespace headrace::test

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--rank") return headrace::test::run_rank(argv + 2);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
