// SPDX-License-Identifier: Apache-2.0
// Two processes add their elements, then one sends the other a message. docs/collectives.md has more.
#include <headrace/comm.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>
using namespace headrace;

static int run_rank(int rank, const std::string& folder) {
  CommOptions options;
  options.rank = rank;
  options.size = 2;
  options.meeting = "file://" + folder;  // between hosts: tcp://host:port of rank 0
  auto comm = Comm::open(options);
  if (!comm) return std::fprintf(stderr, "%s\n", comm.error().message.c_str()), 1;

  std::vector<float> data(1000, static_cast<float>(rank + 1));
  const auto added = comm->all_reduce(data, ReduceOp::sum);
  if (!added) return std::fprintf(stderr, "%s\n", added.error().message.c_str()), 1;
  std::printf("rank %d: the sum is %g\n", rank, static_cast<double>(data[0]));

  std::vector<std::int32_t> message(3, 7), got(3);
  MessageOptions tag;
  tag.tag = 5;
  tag.async = rank == 0;  // the sender goes on at once and waits later
  const auto work = rank == 0 ? comm->send(message, 1, tag) : comm->recv(got, any_source, tag);
  if (!work || !work->wait()) return 1;
  const bool right = data[0] == 3 && (rank == 0 || got == message);
  return right && comm->finalize() ? 0 : 1;
}

int main() {
  std::string folder = (std::filesystem::temp_directory_path() / "all-reduce-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  const pid_t other = ::fork();  // before any communicator: a forked child opens its own
  if (other == 0) ::_exit(run_rank(1, folder));
  const int mine = run_rank(0, folder);
  int status = 0;
  ::waitpid(other, &status, 0);
  std::filesystem::remove_all(folder);
  return mine == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
