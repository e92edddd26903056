// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/decoder.hpp"

#include "cli/common/errors.hpp"
#include "cli/demo/expert_group.hpp"
#include "cli/demo/rank_group.hpp"

#include <optional>
#include <set>

namespace headrace::cli::demo {
namespace {

class WholeDecoder final : public Decoder {
 public:
  explicit WholeDecoder(TextModel model) : model_(std::move(model)) {}

  KvShape kv_shape(std::int64_t page_tokens, std::int64_t pages) const override {
    return model_.kv_shape(page_tokens, pages);
  }
  Device device() const override { return model_.device(); }
  Result<void> meet_ranks(Agent&) override { return {}; }
  Result<void> begin(std::uint64_t, const Sequence&) override { return {}; }
  Result<void> take(std::uint64_t, std::int64_t token, KvPool& pool, Sequence& sequence) override {
    return model_.take(std::span(&token, 1), pool, sequence);
  }
  Result<std::span<const float>> logits() override { return model_.logits(); }
  Result<void> end(std::uint64_t) override { return {}; }

 private:
  TextModel model_;
};

/// Rank 0. The others get a message for each text that begins or ends and for each token, in this order, and
/// run the token at the same time.
class FirstRank final : public Decoder {
 public:
  explicit FirstRank(RankGroup group) : group_(std::move(group)) {}

  KvShape kv_shape(std::int64_t page_tokens, std::int64_t pages) const override {
    return group_.model().kv_shape(page_tokens, pages);
  }
  Device device() const override { return {}; }

  Result<void> meet_ranks(Agent& agent) override {
    agent_ = &agent;
    for (int rank = 1; rank < group_.size(); ++rank)
      HEADRACE_CLI_CHECK(await_peer(agent, rank_name(rank), std::chrono::seconds(30)));
    return {};
  }

  Result<void> begin(std::uint64_t id, const Sequence& sequence) override {
    running_.insert(id);
    return tell({{"type", "begin"}, {"id", id}, {"pages", sequence.pages}, {"length", sequence.length()}});
  }

  Result<void> take(std::uint64_t id, std::int64_t token, KvPool& pool, Sequence& sequence) override {
    HEADRACE_CLI_CHECK(tell({{"type", "take"}, {"id", id}, {"token", token}}));
    return group_.take(token, pool, sequence);
  }

  Result<std::span<const float>> logits() override { return group_.model().logits(); }

  Result<void> end(std::uint64_t id) override {
    if (running_.erase(id) == 0) return {};
    return tell({{"type", "end"}, {"id", id}});
  }

 private:
  Result<void> tell(const Message& message) {
    for (int rank = 1; rank < group_.size(); ++rank)
      if (auto sent = send(*agent_, rank_name(rank), message); !sent)
        return after_the_end(std::move(sent).error());
    return {};
  }

  RankGroup group_;
  Agent* agent_ = nullptr;
  std::set<std::uint64_t> running_;  // texts of which the other ranks know
};

/// One of the ranks that share the experts. Each of them calls `take` or `take_part` as often as the others.
class ExpertRank final : public Decoder {
 public:
  ExpertRank(ExpertModel model, const MoEConfig& config) : model_(std::move(model)), config_(config) {}

  KvShape kv_shape(std::int64_t page_tokens, std::int64_t pages) const override {
    return model_->kv_shape(page_tokens, pages);
  }
  Device device() const override { return {}; }

  Result<void> meet_ranks(Agent& agent) override {
    HEADRACE_CLI_TRY(group, ExpertGroup::join(std::move(*model_), config_, agent));
    model_.reset();
    group_.emplace(std::move(group));
    return {};
  }

  Result<void> begin(std::uint64_t, const Sequence&) override { return {}; }
  Result<void> take(std::uint64_t, std::int64_t token, KvPool& pool, Sequence& sequence) override {
    return group_->take(token, pool, sequence);
  }
  Result<void> take_part() override { return group_->take_part(); }
  Result<std::span<const float>> logits() override { return group_->logits(); }
  Result<void> end(std::uint64_t) override { return {}; }

 private:
  std::optional<ExpertModel> model_;  // until the ranks have met
  MoEConfig config_;
  std::optional<ExpertGroup> group_;
};

Result<std::unique_ptr<Decoder>> open_expert_rank(const WorkerOptions& options) {
  HEADRACE_CLI_TRY(file, pull_weights(options));
  const ModelFiles files{options.packages, file.path()};
  HEADRACE_CLI_TRY(sizes, read_model_sizes(files));
  const Rank rank{options.rank.number, options.expert_ranks};
  HEADRACE_CLI_TRY(config, expert_config(sizes, rank));
  HEADRACE_CLI_TRY(
      model, ExpertModel::open(files, config.first_expert(rank.number), config.local_experts(rank.number)));
  return std::unique_ptr<Decoder>(std::make_unique<ExpertRank>(std::move(model), config));
}

}  // namespace

Result<std::unique_ptr<Decoder>> open_decoder(const WorkerOptions& options) {
  if (options.expert_ranks > 0) return open_expert_rank(options);
  if (options.rank.of == 1) {
    HEADRACE_CLI_TRY(model, open_model(options));
    return std::unique_ptr<Decoder>(std::make_unique<WholeDecoder>(std::move(model)));
  }
  HEADRACE_CLI_TRY(group, RankGroup::join(options));
  return std::unique_ptr<Decoder>(std::make_unique<FirstRank>(std::move(group)));
}

}  // namespace headrace::cli::demo
