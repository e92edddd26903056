// SPDX-License-Identifier: Apache-2.0
// Two ranks fill halves of each other's window without the other one's help, and count in one element.
// docs/collectives.md has more.
#include <headrace/comm_window.hpp>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
using namespace headrace;

constexpr std::size_t half = 1000;

/// An example ends at its first error.
template <class Answer>
static void must(const Answer& answer) {
  if (answer) return;
  std::fprintf(stderr, "%s\n", answer.error().message.c_str());
  std::exit(1);
}

static void run_rank(int rank) {
  auto comm = Comm::open({.rank = rank, .size = 2, .meeting = "memory:windows"});
  must(comm);
  auto window = comm->new_window();
  must(window);
  const auto mine = window->allocate(2 * half + 1, DType::int64);  // all ranks; the memory holds zeros
  must(mine);
  const auto* const elements = static_cast<const std::int64_t*>(mine->data);
  const int other = 1 - rank;

  // The signal comes after the bytes: the rank that has waited for it reads them.
  const std::vector<std::int64_t> numbers(half, 10 + rank);
  must(window->put(numbers, other, 0));
  must(window->signal(other));
  must(window->wait_signal(other));
  std::printf("rank %d: rank %d has put %lld\n", rank, other, static_cast<long long>(elements[0]));

  // Reading needs no help either; asynchronous operations run in order, and flush waits for them.
  std::vector<std::int64_t> copy(half);
  must(window->put(numbers, other, half, {.async = true}));
  must(window->get(copy, other, 0, {.async = true}));
  must(window->flush());

  // Both count in the last element of rank 0, in one step each.
  must(window->atomic_add(0, 2 * half, 1));
  must(comm->barrier());
  if (elements[0] != 10 + other || elements[2 * half - 1] != 10 + other || copy[0] != 10 + rank) std::exit(1);
  if (rank == 0 && elements[2 * half] != 2) std::exit(1);
  must(window->tensor_deregister());  // all ranks
  must(comm->finalize());
}

int main() {
  std::jthread other(run_rank, 1);
  run_rank(0);
}
