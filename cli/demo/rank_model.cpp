// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/rank_model.hpp"

#include "cli/common/checksum.hpp"
#include "cli/common/errors.hpp"
#include "cli/demo/rank_weights.hpp"
#include "cli/demo/text_model.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

namespace headrace::cli::demo {
namespace {

constexpr std::size_t attention_weights = 3;  // of the six of a layer; the others are of its second half

Result<Model> open_part(const std::string& folder, const char* part, int ranks) {
  const std::string piece = fmt::format("{}_of_{}", part, ranks);
  std::error_code error;
  if (!std::filesystem::exists(fmt::format("{}/{}.pt2", folder, piece), error))
    return fail(Code::not_found,
                "there is no package {}.pt2 in {}: make it by `python -m headrace.demo_model.export "
                "--tensor-parallel {} --output {}`",
                piece, folder, ranks, folder);
  return open_piece(folder, piece, "cpu");
}

TensorView whole_numbers(std::span<const std::int64_t> values) {
  return {values.data(), DType::int64, {static_cast<std::int64_t>(values.size())}, {}, {}};
}

Result<Tensor> own(const NamedTensors& weights, const std::string& name) {
  HEADRACE_CLI_TRY(view, find_weight(weights, name));
  return Tensor::copy_of(view);
}

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
  HEADRACE_CLI_TRY(attention, open_part(files.packages, "attention", rank.of));
  HEADRACE_CLI_TRY(feed_forward, open_part(files.packages, "feed_forward", rank.of));
  HEADRACE_CLI_TRY(store, open_part(files.packages, "store", rank.of));
  HEADRACE_CLI_TRY(embed, open_piece(files.packages, "embed", "cpu"));
  HEADRACE_CLI_TRY(head, open_piece(files.packages, "head", "cpu"));
  RankModel model(rank, std::move(embed), std::move(attention), std::move(feed_forward), std::move(store),
                  std::move(head));
  HEADRACE_CLI_TRY(sizes, read_model_sizes(files));
  model.sizes_ = sizes;
  if (auto taken = model.take_weights(files.weights); !taken)
    return std::move(taken).error().within(files.weights);
  return model;
}

Result<void> RankModel::take_weights(const std::string& file) {
  HEADRACE_CLI_TRY(weights, read_weights(file));
  HEADRACE_CLI_TRY(embedding, own(weights, "embedding"));
  HEADRACE_CLI_TRY(norm, own(weights, "norm"));
  HEADRACE_CLI_TRY(zeros, Tensor::zeros(DType::float32, {1, sizes_.width}));
  embedding_ = std::move(embedding);
  norm_ = std::move(norm);
  zeros_ = std::move(zeros);
  for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
    std::vector<TensorView> whole;
    for (const char* name : layer_weights) {
      HEADRACE_CLI_TRY(view, find_weight(weights, layer_weight_name(layer, name)));
      whole.push_back(view);
    }
    HEADRACE_CLI_TRY(part, cut_layer(whole, sizes_, rank_));
    layers_.push_back(std::move(part));
  }
  return {};
}

KvShape RankModel::kv_shape(std::int64_t page_tokens, std::int64_t pages) const {
  const KvShape whole{sizes_.layers, sizes_.kv_heads, sizes_.head_width, page_tokens, pages, DType::float32};
  return whole.split(rank_.of);
}

Result<void> RankModel::begin(std::int64_t token) {
  return embed_.run(std::vector<TensorView>{whole_numbers(std::span(&token, 1)), embedding_}, x_);
}

/// Only one rank adds x to its part, so that it is in the sum once.
TensorView RankModel::residual() const { return rank_.number == 0 ? x() : zeros_.view(); }

Result<std::span<float>> RankModel::attention(std::int64_t layer, KvPool& pool, const Sequence& sequence) {
  const TensorView kv = pool.layer(layer);
  const std::span slots(sequence.slots);
  std::vector<TensorView> inputs{x(), residual(), kv, whole_numbers(slots.first(slots.size() - 1))};
  const std::vector<Tensor>& weights = layers_[static_cast<std::size_t>(layer)];
  inputs.insert(inputs.end(), weights.begin(), weights.begin() + attention_weights);
  HEADRACE_CLI_CHECK(attention_.run(inputs, outputs_));
  HEADRACE_CLI_CHECK(store_.run(
      std::vector<TensorView>{kv, whole_numbers(slots.last(1)), outputs_[1], outputs_[2]}, nothing_));
  return become_x(outputs_);
}

Result<std::span<float>> RankModel::feed_forward(std::int64_t layer) {
  std::vector<TensorView> inputs{x(), residual()};
  const std::vector<Tensor>& weights = layers_[static_cast<std::size_t>(layer)];
  inputs.insert(inputs.end(), weights.begin() + attention_weights, weights.end());
  HEADRACE_CLI_CHECK(feed_forward_.run(inputs, outputs_));
  return become_x(outputs_);
}

Result<std::span<float>> RankModel::become_x(std::vector<Tensor>& outputs) {
  std::swap(x_, outputs);
  return x_.front().elements<float>();
}

Result<std::span<const float>> RankModel::logits() {
  HEADRACE_CLI_CHECK(head_.run(std::vector<TensorView>{x(), norm_, embedding_}, logits_));
  return std::as_const(logits_.front()).elements<float>();
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

std::uint64_t logits_checksum(std::span<const float> logits) { return checksum(std::as_bytes(logits)); }

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
  const auto page = static_cast<std::size_t>(page_tokens);
  const std::size_t pages = (prompt.size() + count + page - 1) / page;
  HEADRACE_CLI_TRY(
      pool, KvPool::alone(whole.kv_shape(page_tokens, static_cast<std::int64_t>(pages)), whole.device()));
  Sequence sequence;
  sequence.pages = *pool.take(pages);
  HEADRACE_CLI_CHECK(run_prompt(whole, prompt, chunk_tokens, pool, sequence));
  HEADRACE_CLI_TRY(first, whole.logits());
  CheckedText text;
  text.tokens.push_back(choose_token(first, sampling, sequence.length()));

  HEADRACE_CLI_TRY(all, open_all(files, ranks, pool));
  const std::vector<RankRun> runs = all.runs();
  while (text.tokens.size() < count) {
    HEADRACE_CLI_CHECK(take_token(runs, text.tokens.back(), sequence, add_in_order));
    HEADRACE_CLI_TRY(logits, all.models.front().logits());
    text.logits.push_back(logits_checksum(logits));
    text.tokens.push_back(choose_token(logits, sampling, sequence.length()));
  }
  return text;
}

}  // namespace headrace::cli::demo
