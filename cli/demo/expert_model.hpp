// SPDX-License-Identifier: Apache-2.0
// The language model with experts as one of several ranks runs it (expert parallelism), one token at a time:
// each rank has all of a layer but its experts, and some of these.
#pragma once

#include "cli/demo/sampling.hpp"
#include "cli/demo/step_model.hpp"

#include <headrace/moe.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace headrace::cli::demo {

/// How the ranks share the experts, and what moves between them: a token of each rank at a time.
///   errors  invalid_argument (the model has no experts, or fewer than ranks)
Result<MoEConfig> expert_config(const ModelSizes& sizes, Rank rank);
/// The rank that has an expert.
[[nodiscard]] int rank_of_expert(const MoEConfig& config, std::int64_t expert);

/// Where a token goes.
struct TokenRoute {
  std::span<const float> row;             ///< [width], of which each expert makes its result
  std::span<const std::int64_t> experts;  ///< [top_k]
  std::span<const float> weights;         ///< [top_k]
};

///   threads  one
class ExpertModel {
 public:
  /// Opens the packages and takes the weights, of the experts those from `first` on. Runs on the CPU.
  ///   errors  not_found (a package is missing: the command that makes it); those of Model::open; corrupt
  ///   (the
  ///           file lacks a weight, or has one of another shape; the text names it)
  static Result<ExpertModel> open(const ModelFiles& files, std::int64_t first, std::int64_t count);

  [[nodiscard]] const ModelSizes& sizes() const { return step_.sizes(); }
  [[nodiscard]] KvShape kv_shape(std::int64_t page_tokens, std::int64_t pages) const {
    return step_.kv_shape(page_tokens, pages);
  }

  /// Sets x to the token's embedding.
  Result<void> begin(std::int64_t token) { return step_.begin(token); }
  /// Makes x the result of a layer's attention, and chooses the token's experts.
  ///   shapes  sequence: has the token's slot, the last one
  ///   owns    the result is this object's, until the next layer
  Result<TokenRoute> attention(std::int64_t layer, KvPool& pool, const Sequence& sequence);
  /// Runs an expert of this rank on one row, of any rank's token. One row a run: more of them would be added
  /// in another order, and the bits of a token would depend on the tokens beside it.
  ///   shapes  expert: counted from `first`; row, result [width]
  Result<void> run_expert(std::int64_t layer, std::int64_t expert, const float* row, std::span<float> result);
  /// x, to which the caller adds the results.
  [[nodiscard]] std::span<float> x() { return step_.x_elements(); }
  /// The logits of the token that follows.
  [[nodiscard]] Result<std::span<const float>> logits() { return step_.logits(); }

 private:
  /// gate_up and down of one expert.
  struct Expert {
    Tensor gate_up, down;
  };
  struct Layer {
    std::vector<Tensor> weights;  ///< as in the file, up to the router
    std::vector<Expert> experts;  ///< of this rank
  };
  ExpertModel(StepModel step, Model route, Model expert)
      : step_(std::move(step)), route_(std::move(route)), expert_(std::move(expert)) {}
  Result<void> take_weights(const std::string& file, std::int64_t first, std::int64_t count);

  StepModel step_;
  Model route_, expert_;
  std::vector<Layer> layers_;
  std::vector<Tensor> routed_, result_;
};

/// Generates a text in this process alone, as so many ranks add; --check compares with it. The whole model
/// runs the prompt, as in the demo.
Result<CheckedText> generate_by_experts(const ModelFiles& files, int ranks,
                                        std::span<const std::int64_t> prompt, std::size_t count,
                                        const Sampling& sampling, std::size_t chunk_tokens,
                                        std::int64_t page_tokens);

}  // namespace headrace::cli::demo
