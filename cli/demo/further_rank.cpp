// SPDX-License-Identifier: Apache-2.0
// A rank other than 0 of the decode worker: it runs the tokens that rank 0 names, for its own heads.
#include "cli/common/errors.hpp"
#include "cli/demo/decoder.hpp"
#include "cli/demo/rank_group.hpp"
#include "cli/demo/stop_signals.hpp"

#include <map>

namespace headrace::cli::demo {
namespace {

class FurtherRank {
 public:
  FurtherRank(Agent agent, RankGroup group, KvPool pool)
      : group_(std::move(group)), pool_(std::move(pool)), agent_(std::move(agent)) {}

  Result<void> run() {
    HEADRACE_CLI_TRY(stop, StopSignals::open());
    HEADRACE_CLI_CHECK(report_ready(agent_));
    while (StopSignals::number() == 0)
      if (auto received = receive(agent_, std::chrono::milliseconds(200)))
        HEADRACE_CLI_CHECK(take(*received));
    return {};
  }

 private:
  Result<void> take(const Received& received) try {
    const std::string type = received.type();
    if (type == "begin") return begin(received);
    if (type == "take") return run_token(received);
    if (type == "end") texts_.erase(received.id());
    if (type == "status") return answer_status(received);
    return {};
  } catch (const Message::exception& error) {
    return fail(Code::corrupt, "a message from {} cannot be read: {}", received.from, error.what());
  }

  /// Rank 0 gives out the pages: their numbers hold in the pools of all ranks.
  Result<void> begin(const Received& received) {
    Sequence& sequence = texts_[received.id()] = {};
    sequence.pages = received.message.at("pages").get<std::vector<std::uint32_t>>();
    sequence.add_slots(received.message.at("length").get<std::size_t>(), pool_.shape());
    return {};
  }

  Result<void> run_token(const Received& received) {
    const auto found = texts_.find(received.id());
    if (found == texts_.end())
      return fail(Code::corrupt, "{} names text {}, which has not begun", received.from, received.id());
    return group_.take(received.message.at("token").get<std::int64_t>(), pool_, found->second);
  }

  Result<void> answer_status(const Received& received) {
    std::size_t used = 0;
    for (const auto& [id, sequence] : texts_) used += sequence.pages.size();
    const auto pages = static_cast<std::size_t>(pool_.shape().pages);
    return send(agent_, received.from,
                {{"type", "status"}, {"id", received.id()}, {"free_pages", pages - used}, {"pages", pages}});
  }

  RankGroup group_;
  KvPool pool_;
  Agent agent_;  // destroyed before the pool: peers reach the pool through it
  std::map<std::uint64_t, Sequence> texts_;
};

}  // namespace

Result<void> run_further_rank(const WorkerOptions& options) {
  HEADRACE_CLI_TRY(group, RankGroup::join(options));
  HEADRACE_CLI_TRY(agent, open_agent(options));
  const KvShape shape = group.model().kv_shape(options.page_tokens, options.pages);
  HEADRACE_CLI_TRY(pool, KvPool::allocate(agent, shape, {}));
  return FurtherRank(std::move(agent), std::move(group), std::move(pool)).run();
}

}  // namespace headrace::cli::demo
