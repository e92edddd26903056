// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/rank_model.hpp"

#include "cli/common/errors.hpp"
#include "cli/demo/rank_weights.hpp"
#include "cli/demo/text_model.hpp"

#include <algorithm>
#include <utility>

namespace headrace::cli::demo {
namespace {

/// Adds the parts in the order of the ranks, as the communicator does.
Result<void> add_in_order(std::span<const std::span<float>> parts) {
  const std::span<float> sum = parts.front();
  for (const std::span<float> part : parts.subspan(1))
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  for (const std::span<float> part : parts.subspan(1)) std::ranges::copy(sum, part.begin());
  return {};
}

}  // namespace

Result<RankModel> RankModel::open(const ModelFiles& files, Rank rank) {
  const auto piece = [&](const char* part) { return fmt::format("{}_of_{}", part, rank.of); };
  const StepPackages packages{piece("attention"), piece("store"),
                              fmt::format("--tensor-parallel {}", rank.of)};
  HEADRACE_CLI_TRY(step, StepModel::open(files, packages));
  HEADRACE_CLI_TRY(feed_forward, open_part(files.packages, piece("feed_forward"), packages.made_by));
  RankModel model(rank, std::move(step), std::move(feed_forward));
  if (auto taken = model.take_weights(files.weights); !taken)
    return std::move(taken).error().within(files.weights);
  return model;
}

Result<void> RankModel::take_weights(const std::string& file) {
  HEADRACE_CLI_TRY(weights, read_weights(file));
  HEADRACE_CLI_CHECK(step_.take_weights(weights));
  HEADRACE_CLI_TRY(zeros, Tensor::zeros(DType::float32, {1, sizes().width}));
  zeros_ = std::move(zeros);
  for (std::int64_t layer = 0; layer < sizes().layers; ++layer) {
    std::vector<TensorView> whole;
    for (const char* name : layer_weights) {
      HEADRACE_CLI_TRY(view, find_weight(weights, layer_weight_name(layer, name)));
      whole.push_back(view);
    }
    HEADRACE_CLI_TRY(part, cut_layer(whole, sizes(), rank_));
    layers_.push_back(std::move(part));
  }
  return {};
}

KvShape RankModel::kv_shape(std::int64_t page_tokens, std::int64_t pages) const {
  return step_.kv_shape(page_tokens, pages).split(rank_.of);
}

/// Only one rank adds x to its part, so that it is in the sum once.
TensorView RankModel::residual() const { return rank_.number == 0 ? step_.x() : zeros_.view(); }

Result<std::span<float>> RankModel::attention(std::int64_t layer, KvPool& pool, const Sequence& sequence) {
  HEADRACE_CLI_CHECK(
      step_.attention(layers_[static_cast<std::size_t>(layer)], residual(), pool.layer(layer), sequence));
  return step_.x_elements();
}

Result<std::span<float>> RankModel::feed_forward(std::int64_t layer) {
  std::vector<TensorView> inputs{step_.x(), residual()};
  const std::vector<Tensor>& weights = layers_[static_cast<std::size_t>(layer)];
  inputs.insert(inputs.end(), weights.begin() + StepModel::attention_weights, weights.end());
  HEADRACE_CLI_CHECK(step_.become(feed_forward_, inputs));
  return step_.x_elements();
}

Result<void> take_token(std::span<const RankRun> ranks, std::int64_t token, Sequence& sequence,
                        const AddParts& add) {
  sequence.add_slots(1, ranks.front().pool->shape());
  for (const RankRun& rank : ranks) HEADRACE_CLI_CHECK(rank.model->begin(token));
  std::vector<std::span<float>> parts(ranks.size());
  for (std::int64_t layer = 0; layer < ranks.front().model->sizes().layers; ++layer) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      HEADRACE_CLI_TRY(part, ranks[i].model->attention(layer, *ranks[i].pool, sequence));
      parts[i] = part;
    }
    HEADRACE_CLI_CHECK(add(parts));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      HEADRACE_CLI_TRY(part, ranks[i].model->feed_forward(layer));
      parts[i] = part;
    }
    HEADRACE_CLI_CHECK(add(parts));
  }
  return {};
}

namespace {

/// The ranks of one process, with their pools.
struct AllRanks {
  std::vector<RankModel> models;
  std::vector<KvPool> pools;

  [[nodiscard]] std::vector<RankRun> runs() {
    std::vector<RankRun> runs;
    for (std::size_t i = 0; i < models.size(); ++i) runs.push_back({&models[i], &pools[i]});
    return runs;
  }
};

/// Opens the ranks and gives each its heads of the prompt.
Result<AllRanks> open_all(const ModelFiles& files, int ranks, const KvPool& prompt) {
  AllRanks all;
  for (int number = 0; number < ranks; ++number) {
    const Rank rank{number, ranks};
    HEADRACE_CLI_TRY(model, RankModel::open(files, rank));
    HEADRACE_CLI_TRY(pool, KvPool::alone(prompt.shape().split(ranks), {}));
    prompt.copy_heads(rank, pool);
    all.models.push_back(std::move(model));
    all.pools.push_back(std::move(pool));
  }
  return all;
}

}  // namespace

Result<CheckedText> generate_by_ranks(const ModelFiles& files, int ranks,
                                      std::span<const std::int64_t> prompt, std::size_t count,
                                      const Sampling& sampling, std::size_t chunk_tokens,
                                      std::int64_t page_tokens) {
  HEADRACE_CLI_TRY(whole, TextModel::open(files, "cpu"));
  HEADRACE_CLI_TRY(begun, begin_alone(whole, prompt, count, sampling, chunk_tokens, page_tokens));
  CheckedText text{{begun.first}, {}};
  HEADRACE_CLI_TRY(all, open_all(files, ranks, begun.pool));
  const std::vector<RankRun> runs = all.runs();
  while (text.tokens.size() < count) {
    HEADRACE_CLI_CHECK(take_token(runs, text.tokens.back(), begun.sequence, add_in_order));
    HEADRACE_CLI_TRY(logits, all.models.front().logits());
    text.logits.push_back(logits_checksum(logits));
    text.tokens.push_back(choose_token(logits, sampling, begun.sequence.length()));
  }
  return text;
}

}  // namespace headrace::cli::demo
