// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_ranks.hpp"

#include "cli/common/child_ending.hpp"
#include "cli/common/work_folder.hpp"

#include <headrace/comm.hpp>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::cli {
namespace {

/// Whether the error only tells of another rank's.
bool is_echo(const Error& error) { return error.code == Code::canceled || error.code == Code::peer_lost; }

/// The arguments of this process.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> arguments;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    arguments.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return arguments;
}

/// Ends the child when its parent ends.
pid_t start_process(const std::vector<std::string>& arguments) {
  std::vector<char*> words;
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) ::execv("/proc/self/exe", words.data());
  ::_exit(127);
}

}  // namespace

Result<void> run_as_threads(int ranks, const std::function<Result<void>(const RankPlace& place)>& run) {
  return run_as_threads({0, ranks, fmt::format("memory:bench-{}", ::getpid())}, ranks, run);
}

Result<void> run_as_threads(const RankPlace& first, int count,
                            const std::function<Result<void>(const RankPlace& place)>& run) {
  std::vector<Result<void>> results(static_cast<std::size_t>(count));
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < count; ++i)
      threads.emplace_back([&, i] {
        auto& result = results[static_cast<std::size_t>(i)];
        const int rank = first.rank + i;
        try {
          result = run({rank, first.ranks, first.meeting});
        } catch (const std::bad_alloc&) {
          result = fail(Code::exhausted, "rank {}: out of memory: measure smaller sizes", rank);
        }
      });
  }
  Result<void> echo;
  for (auto& result : results) {
    if (!result && !is_echo(result.error())) return std::move(result);
    if (!result) echo = std::move(result);
  }
  return echo;
}

Result<void> run_as_processes(int ranks) {
  HEADRACE_CLI_TRY(folder, WorkFolder::make());
  std::vector<pid_t> children;
  Result<void> result;
  for (int rank = 0; rank < ranks && result; ++rank) {
    auto arguments = own_arguments();
    arguments.insert(arguments.end(),
                     {"--rank", std::to_string(rank), "--meeting", "file://" + folder.path()});
    const pid_t child = start_process(arguments);
    if (child < 0)
      result = fail(Code::exhausted, "starting a process for rank {}: {}", rank, system_text());
    else
      children.push_back(child);
  }
  if (!result)
    for (const pid_t child : children) ::kill(child, SIGKILL);
  std::string failed;
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    ::waitpid(children[rank], &status, 0);
    if (status != 0)
      failed += fmt::format("{}rank {} {}", failed.empty() ? "" : ", ", rank, ending_text(status));
  }
  if (result && !failed.empty()) return fail(Code::backend_failed, "{}", failed);
  return result;
}

Result<std::optional<RankPlace>> launched_rank(const std::string& meeting) {
  auto options = CommOptions::from_environment();
  if (!options && options.code() == Code::not_found) return std::optional<RankPlace>();
  if (!options) return std::move(options).error();
  RankPlace place{options->rank, options->size, meeting.empty() ? options->meeting : meeting};
  if (place.meeting.empty() && place.ranks > 1)
    return fail(Code::invalid_argument,
                "a launcher has started rank {} of {}, and its variables name no place where the ranks can "
                "meet: give --meeting, for example file:///tmp/meeting on one host, or tcp://HOST:PORT with "
                "a free port of rank 0's host",
                place.rank, place.ranks);
  return std::optional<RankPlace>(std::move(place));
}

}  // namespace headrace::cli
