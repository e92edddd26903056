// SPDX-License-Identifier: Apache-2.0
// Four ranks are a mesh of two rows and two columns. Each row and each column has a communicator of its own,
// which `split` makes of that of all ranks: tensor parallel sums go along rows, data parallel means along
// columns. docs/collectives.md has more.
#include <headrace/comm.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>
using namespace headrace;

/// An example ends at its first error.
template <class Answer>
static void must(const Answer& answer) {
  if (answer) return;
  std::fprintf(stderr, "%s\n", answer.error().message.c_str());
  std::exit(1);
}

/// All ranks call it, each with the ranks of its own group.
static Comm part_of(Comm& all, const std::array<int, 2>& ranks, const std::string& name) {
  auto part = all.split(ranks, name);
  must(part);
  return std::move(**part);
}

static void run_rank(int rank) {
  auto all = Comm::open({.rank = rank, .size = 4, .meeting = "memory:mesh"});
  must(all);
  const int row = rank / 2, column = rank % 2;
  Comm along_row = part_of(*all, {2 * row, 2 * row + 1}, "row " + std::to_string(row));
  Comm along_column = part_of(*all, {column, column + 2}, "column " + std::to_string(column));

  std::vector<float> partial{static_cast<float>(rank)};
  must(along_row.all_reduce(partial, ReduceOp::sum));
  std::vector<float> gradient{partial};
  must(along_column.all_reduce(gradient, ReduceOp::avg));
  std::printf("rank %d is rank %d of %s and rank %d of %s: %g, %g\n", rank, along_row.rank(),
              along_row.name().c_str(), along_column.rank(), along_column.name().c_str(),
              static_cast<double>(partial[0]), static_cast<double>(gradient[0]));
  if (partial[0] != (row == 0 ? 1.0F : 5.0F) || gradient[0] != 3) std::exit(1);
}

int main() {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 4; ++rank) threads.emplace_back(run_rank, rank);
}
