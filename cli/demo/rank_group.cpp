// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/rank_group.hpp"

#include "cli/common/errors.hpp"
#include "cli/demo/stop_signals.hpp"

#include <fmt/ranges.h>

#include <algorithm>

namespace headrace::cli::demo {
namespace {

/// The backends that the user has named, as far as communicators use them; empty: the default.
std::string comm_backends(const std::vector<std::string>& named) {
  std::vector<std::string> known;
  for (const char* backend : {"shm", "tcp"})
    if (std::ranges::find(named, backend) != named.end()) known.emplace_back(backend);
  return fmt::format("{}", fmt::join(known, ","));
}

Result<Comm> open_comm(const WorkerOptions& options) {
  CommOptions comm;
  comm.rank = options.rank.number;
  comm.size = options.rank.of;
  comm.name = "decode";
  comm.meeting = "file://" + options.folder + "/ranks";
  comm.interrupted = [] { return StopSignals::number() != 0; };
  if (const std::string backends = comm_backends(options.backends); !backends.empty())
    comm.hints["backends"] = backends;
  return Comm::open(comm);
}

}  // namespace

Result<RankGroup> RankGroup::join(const WorkerOptions& options) {
  HEADRACE_CLI_TRY(file, pull_weights(options));
  HEADRACE_CLI_TRY(model, RankModel::open({options.packages, file.path()}, options.rank));
  HEADRACE_CLI_TRY(comm, open_comm(options));
  return RankGroup(std::move(model), std::move(comm));
}

Result<void> RankGroup::take(std::int64_t token, KvPool& pool, Sequence& sequence) {
  const RankRun mine{&model_, &pool};
  Result<void> taken = take_token(
      std::span(&mine, 1), token, sequence, [&](std::span<const std::span<float>> parts) -> Result<void> {
        HEADRACE_CLI_CHECK(comm_.all_reduce(Elements(parts.front()), ReduceOp::sum));
        return {};
      });
  if (!taken && comm_.is_aborted()) return after_the_end(std::move(taken).error());
  return taken;
}

}  // namespace headrace::cli::demo
