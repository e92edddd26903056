// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/step_model.hpp"

#include "cli/common/checksum.hpp"
#include "cli/common/errors.hpp"

#include <utility>

namespace headrace::cli::demo {
namespace {

TensorView whole_numbers(std::span<const std::int64_t> values) {
  return {values.data(), DType::int64, {static_cast<std::int64_t>(values.size())}, {}, {}};
}

}  // namespace

Result<StepModel> StepModel::open(const ModelFiles& files, const StepPackages& packages) {
  HEADRACE_CLI_TRY(attention, open_part(files.packages, packages.attention, packages.made_by));
  HEADRACE_CLI_TRY(store, open_part(files.packages, packages.store, packages.made_by));
  HEADRACE_CLI_TRY(embed, open_piece(files.packages, "embed", "cpu"));
  HEADRACE_CLI_TRY(head, open_piece(files.packages, "head", "cpu"));
  StepModel model(std::move(embed), std::move(attention), std::move(store), std::move(head));
  HEADRACE_CLI_TRY(sizes, read_model_sizes(files));
  model.sizes_ = sizes;
  return model;
}

Result<void> StepModel::take_weights(const NamedTensors& weights) {
  HEADRACE_CLI_TRY(embedding, copy_weight(weights, "embedding"));
  HEADRACE_CLI_TRY(norm, copy_weight(weights, "norm"));
  embedding_ = std::move(embedding);
  norm_ = std::move(norm);
  return {};
}

Result<void> StepModel::begin(std::int64_t token) {
  return embed_.run(std::vector<TensorView>{whole_numbers(std::span(&token, 1)), embedding_}, x_);
}

Result<void> StepModel::attention(std::span<const Tensor> layer, const TensorView& residual,
                                  const TensorView& kv, const Sequence& sequence) {
  const std::span slots(sequence.slots);
  std::vector<TensorView> inputs{x(), residual, kv, whole_numbers(slots.first(slots.size() - 1))};
  const auto weights = layer.first(attention_weights);
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  HEADRACE_CLI_CHECK(attention_.run(inputs, outputs_));
  HEADRACE_CLI_CHECK(store_.run(
      std::vector<TensorView>{kv, whole_numbers(slots.last(1)), outputs_[1], outputs_[2]}, nothing_));
  std::swap(x_, outputs_);
  return {};
}

Result<void> StepModel::become(Model& package, std::span<const TensorView> inputs) {
  HEADRACE_CLI_CHECK(package.run(inputs, outputs_));
  std::swap(x_, outputs_);
  return {};
}

Result<std::span<const float>> StepModel::logits() {
  HEADRACE_CLI_CHECK(head_.run(std::vector<TensorView>{x(), norm_, embedding_}, logits_));
  return std::as_const(logits_.front()).elements<float>();
}

std::uint64_t logits_checksum(std::span<const float> logits) { return checksum(std::as_bytes(logits)); }

}  // namespace headrace::cli::demo
