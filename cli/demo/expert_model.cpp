// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/expert_model.hpp"

#include "cli/common/errors.hpp"
#include "cli/demo/expert_sums.hpp"
#include "cli/demo/text_model.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace headrace::cli::demo {
namespace {

// Of the weights of a layer: those that every rank has, and among them those of the package "route".
constexpr std::array of_every_rank{"attention_norm", "qkv", "attention_out", "mlp_norm", "router"};
constexpr std::size_t route_begin = 3;

/// One expert's matrix out of those of all experts.
Result<Tensor> expert_matrix(const TensorView& all, const std::string& name, const ModelSizes& sizes,
                             std::int64_t expert) {
  if (all.shape.rank() != 3 || all.shape[0] != sizes.experts)
    return fail(Code::corrupt, "weight \"{}\" has the shape {}, expected {} matrices, one for each expert",
                name, shape_text(all.shape), sizes.experts);
  TensorView one = all;
  one.shape = {all.shape[1], all.shape[2]};
  one.data = static_cast<const std::byte*>(all.data) +
             static_cast<std::size_t>(expert) * static_cast<std::size_t>(one.shape.count()) * sizeof(float);
  return Tensor::copy_of(one);
}

}  // namespace

Result<MoEConfig> expert_config(const ModelSizes& sizes, Rank rank) {
  if (sizes.experts == 0)
    return fail(Code::invalid_argument, "the model has no experts that {} ranks could share", rank.of);
  if (rank.of > sizes.experts)
    return fail(Code::invalid_argument, "{} ranks cannot share {} experts: choose 1 to {}", rank.of,
                sizes.experts, sizes.experts);
  MoEConfig config;
  config.name = "experts";
  config.rank = rank.number;
  config.ranks = rank.of;
  config.experts = static_cast<int>(sizes.experts);
  config.top_k = static_cast<int>(sizes.top_k);
  config.hidden = sizes.width;
  config.dtype = DType::float32;
  config.combine_dtype = DType::float32;
  config.max_tokens = 1;
  if (auto checked = config.check(); !checked) return std::move(checked).error();
  return config;
}

int rank_of_expert(const MoEConfig& config, std::int64_t expert) {
  int rank = 0;
  while (config.first_expert(rank + 1) <= expert) ++rank;
  return rank;
}

Result<ExpertModel> ExpertModel::open(const ModelFiles& files, std::int64_t first, std::int64_t count) {
  const char* const made_by = "--shape experts";
  HEADRACE_CLI_TRY(step, StepModel::open(files, {"attention", "store", made_by}));
  HEADRACE_CLI_TRY(route, open_part(files.packages, "route", made_by));
  HEADRACE_CLI_TRY(expert, open_part(files.packages, "expert", made_by));
  ExpertModel model(std::move(step), std::move(route), std::move(expert));
  if (auto taken = model.take_weights(files.weights, first, count); !taken)
    return std::move(taken).error().within(files.weights);
  return model;
}

Result<void> ExpertModel::take_weights(const std::string& file, std::int64_t first, std::int64_t count) {
  HEADRACE_CLI_TRY(weights, read_weights(file));
  HEADRACE_CLI_CHECK(step_.take_weights(weights));
  for (std::int64_t number = 0; number < sizes().layers; ++number) {
    Layer& layer = layers_.emplace_back();
    for (const char* name : of_every_rank) {
      HEADRACE_CLI_TRY(weight, copy_weight(weights, layer_weight_name(number, name)));
      layer.weights.push_back(std::move(weight));
    }
    const std::string gate_up_name = layer_weight_name(number, "gate_up");
    const std::string down_name = layer_weight_name(number, "down");
    HEADRACE_CLI_TRY(all_gate_up, find_weight(weights, gate_up_name));
    HEADRACE_CLI_TRY(all_down, find_weight(weights, down_name));
    for (std::int64_t expert = first; expert < first + count; ++expert) {
      HEADRACE_CLI_TRY(gate_up, expert_matrix(all_gate_up, gate_up_name, sizes(), expert));
      HEADRACE_CLI_TRY(down, expert_matrix(all_down, down_name, sizes(), expert));
      layer.experts.push_back({std::move(gate_up), std::move(down)});
    }
  }
  return {};
}

Result<TokenRoute> ExpertModel::attention(std::int64_t layer, KvPool& pool, const Sequence& sequence) {
  const std::span<const Tensor> weights = layers_[static_cast<std::size_t>(layer)].weights;
  HEADRACE_CLI_CHECK(step_.attention(weights, step_.x(), pool.layer(layer), sequence));
  HEADRACE_CLI_CHECK(route_.run(
      std::vector<TensorView>{step_.x(), weights[route_begin], weights[route_begin + 1]}, routed_));
  return TokenRoute{std::as_const(routed_[0]).elements<float>(),
                    std::as_const(routed_[1]).elements<std::int64_t>(),
                    std::as_const(routed_[2]).elements<float>()};
}

Result<void> ExpertModel::run_expert(std::int64_t layer, std::int64_t expert, const float* row,
                                     std::span<float> result) {
  const Expert& chosen = layers_[static_cast<std::size_t>(layer)].experts[static_cast<std::size_t>(expert)];
  const TensorView input{row, DType::float32, {1, sizes().width}, {}, {}};
  HEADRACE_CLI_CHECK(expert_.run(std::vector<TensorView>{input, chosen.gate_up, chosen.down}, result_));
  std::ranges::copy(std::as_const(result_.front()).elements<float>(), result.begin());
  return {};
}

namespace {

/// Runs the next token of a sequence with the experts of all ranks, and adds as they do.
Result<void> take_alone(ExpertModel& model, const MoEConfig& config, std::int64_t token, KvPool& pool,
                        Sequence& sequence) {
  sequence.add_slots(1, pool.shape());
  HEADRACE_CLI_CHECK(model.begin(token));
  std::vector<ExpertResult> results(static_cast<std::size_t>(config.top_k));
  for (std::int64_t layer = 0; layer < model.sizes().layers; ++layer) {
    HEADRACE_CLI_TRY(route, model.attention(layer, pool, sequence));
    for (std::size_t k = 0; k < results.size(); ++k) {
      ExpertResult& result = results[k];
      result.rank = rank_of_expert(config, route.experts[k]);
      result.weight = route.weights[k];
      result.row.resize(route.row.size());
      HEADRACE_CLI_CHECK(model.run_expert(layer, route.experts[k], route.row.data(), result.row));
    }
    add_results(results, model.x());
  }
  return {};
}

}  // namespace

Result<CheckedText> generate_by_experts(const ModelFiles& files, int ranks,
                                        std::span<const std::int64_t> prompt, std::size_t count,
                                        const Sampling& sampling, std::size_t chunk_tokens,
                                        std::int64_t page_tokens) {
  HEADRACE_CLI_TRY(whole, TextModel::open(files, "cpu"));
  HEADRACE_CLI_TRY(config, expert_config(whole.sizes(), {0, ranks}));
  HEADRACE_CLI_TRY(begun, begin_alone(whole, prompt, count, sampling, chunk_tokens, page_tokens));
  CheckedText text{{begun.first}, {}};
  HEADRACE_CLI_TRY(model, ExpertModel::open(files, 0, whole.sizes().experts));
  while (text.tokens.size() < count) {
    HEADRACE_CLI_CHECK(take_alone(model, config, text.tokens.back(), begun.pool, begun.sequence));
    HEADRACE_CLI_TRY(logits, model.logits());
    text.logits.push_back(logits_checksum(logits));
    text.tokens.push_back(choose_token(logits, sampling, begun.sequence.length()));
  }
  return text;
}

}  // namespace headrace::cli::demo
