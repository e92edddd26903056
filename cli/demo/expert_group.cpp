// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/expert_group.hpp"

#include "cli/common/errors.hpp"
#include "cli/demo/messages.hpp"
#include "cli/demo/stop_signals.hpp"

#include <utility>

namespace headrace::cli::demo {
namespace {

using namespace std::chrono_literals;

constexpr auto join_patience = 110s;  // the front waits 120 s for its workers, and then names them

/// What a rank without a token gives to a dispatch, which wants addresses all the same.
MoETokens no_tokens(const void* somewhere) {
  MoETokens tokens;
  tokens.rows = tokens.experts = somewhere;
  return tokens;
}

MoETokens one_token(const TokenRoute& route) {
  MoETokens tokens;
  tokens.count = 1;
  tokens.rows = route.row.data();
  tokens.experts = route.experts.data();
  tokens.weights = route.weights.data();
  return tokens;
}

}  // namespace

ExpertGroup::ExpertGroup(ExpertModel model, MoE moe, MoERouting routing)
    : model_(std::move(model)),
      moe_(std::move(moe)),
      routing_(std::move(routing)),
      rows_(static_cast<std::size_t>(moe_.config().output_rows() * moe_.config().hidden)),
      results_(rows_.size()),
      first_rows_(static_cast<std::size_t>(moe_.config().local_experts()) + 1) {}

Result<ExpertGroup> ExpertGroup::join(ExpertModel model, const MoEConfig& config, Agent& agent) {
  MoEConfig own = config;
  own.wait_limit = 24h;  // the front finds a rank that stands still, as it does with other workers
  own.interrupted = [] { return StopSignals::number() != 0; };
  HEADRACE_CLI_TRY(moe, MoE::open(agent, own));
  HEADRACE_CLI_CHECK(agent.publish());
  std::vector<std::string> names;
  for (int rank = 0; rank < own.ranks; ++rank) names.push_back(rank_name(rank));
  HEADRACE_CLI_CHECK(moe.join(names, join_patience));
  HEADRACE_CLI_TRY(routing, moe.new_routing());
  return ExpertGroup(std::move(model), std::move(moe), std::move(routing));
}

Result<void> ExpertGroup::take(std::int64_t token, KvPool& pool, Sequence& sequence) {
  sequence.add_slots(1, pool.shape());
  HEADRACE_CLI_CHECK(model_.begin(token));
  for (std::int64_t layer = 0; layer < model_.sizes().layers; ++layer) {
    HEADRACE_CLI_TRY(route, model_.attention(layer, pool, sequence));
    HEADRACE_CLI_CHECK(exchange(layer, route));
  }
  return {};
}

Result<void> ExpertGroup::take_part() {
  for (std::int64_t layer = 0; layer < model_.sizes().layers; ++layer)
    HEADRACE_CLI_CHECK(exchange(layer, std::nullopt));
  return {};
}

Result<void> ExpertGroup::exchange(std::int64_t layer, const std::optional<TokenRoute>& route) {
  MoERows rows;
  rows.rows = rows_.data();
  rows.first_rows = first_rows_.data();
  if (auto sent = moe_.dispatch(route ? one_token(*route) : no_tokens(rows_.data()), rows, routing_); !sent)
    return after_the_end(std::move(sent).error());
  HEADRACE_CLI_CHECK(run_experts(layer));
  MoEResults results;
  results.rows = results_.data();
  MoESums sums;
  sums.accumulate = true;
  if (route) sums.rows = model_.x().data();
  if (auto added = moe_.combine(results, sums, routing_); !added)
    return after_the_end(std::move(added).error());
  return {};
}

Result<void> ExpertGroup::run_experts(std::int64_t layer) {
  const auto width = static_cast<std::size_t>(moe_.config().hidden);
  for (std::size_t expert = 0; expert + 1 < first_rows_.size(); ++expert)
    for (std::int64_t row = first_rows_[expert]; row < first_rows_[expert + 1]; ++row) {
      const std::size_t at = static_cast<std::size_t>(row) * width;
      HEADRACE_CLI_CHECK(model_.run_expert(layer, static_cast<std::int64_t>(expert), &rows_[at],
                                           std::span(results_).subspan(at, width)));
    }
  return {};
}

}  // namespace headrace::cli::demo
