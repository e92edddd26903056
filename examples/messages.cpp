// SPDX-License-Identifier: Apache-2.0
// Ranks pass numbers around a ring: each sends to the next one and receives from the one before, first
// waiting in every call, then asynchronously, then as a batch. Ranks are threads here; processes meet in the
// same way at "file:///folder" or "tcp://host:port". docs/collectives.md has more.
#include <headrace/comm.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>
using namespace headrace;

constexpr int ranks = 3;

/// An example ends at its first error.
template <class Answer>
static void must(const Answer& answer) {
  if (answer) return;
  std::fprintf(stderr, "%s\n", answer.error().message.c_str());
  std::exit(1);
}

static void run_rank(int rank) {
  auto opened = Comm::open({.rank = rank, .size = ranks, .meeting = "memory:ring"});
  must(opened);
  Comm& comm = *opened;
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  std::vector<std::int32_t> mine(4, rank), got(4);

  // A send that waits is done when `mine` may be changed: the receiver may come later.
  must(comm.send(mine, next));
  must(comm.recv(got, previous));

  // Asynchronous calls return at once, and their works are waited for. Tags tell messages apart.
  std::vector<std::int32_t> first(4), second(4);
  const std::array works{comm.recv(second, previous, {.async = true, .tag = 2}),
                         comm.recv(first, previous, {.async = true, .tag = 1}),
                         comm.send(mine, next, {.async = true, .tag = 1}),
                         comm.send(got, next, {.async = true, .tag = 2})};
  // Here the program does other things.
  for (const auto& work : works) {
    must(work);
    must(work->wait());
  }

  // A batch begins all of its messages together, and has one work.
  std::vector<std::int32_t> around(4);
  Batch batch = comm.batch();
  must(batch.send(second, next));
  must(batch.recv(around, previous));
  must(batch.issue());

  std::printf("rank %d: %d, %d, %d\n", rank, first[0], second[0], around[0]);
  if (first[3] != previous || second[3] != (rank + 1) % ranks || around[3] != rank) std::exit(1);
  must(comm.finalize());
}

int main() {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
}
