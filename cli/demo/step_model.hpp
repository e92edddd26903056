// SPDX-License-Identifier: Apache-2.0
// The language model with its layers cut into parts, one token at a time: everything but a layer's second
// half, which ranks share in one way or another (rank_model.hpp, expert_model.hpp).
#pragma once

#include "cli/demo/kv_pool.hpp"
#include "cli/demo/model_files.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::cli::demo {

/// The packages that depend on how ranks share a layer.
struct StepPackages {
  std::string attention, store;
  std::string made_by;  ///< the options of the export that makes them
};

///   threads  one
class StepModel {
 public:
  /// Weights of a layer that the attention takes: the first ones.
  static constexpr std::size_t attention_weights = 3;

  /// Opens the packages. Runs on the CPU.
  ///   errors  not_found (a package is missing: the command that makes it); those of Model::open
  static Result<StepModel> open(const ModelFiles& files, const StepPackages& packages);
  /// Takes embedding and norm. Called before the first token.
  ///   errors  corrupt (one of them is missing)
  Result<void> take_weights(const NamedTensors& weights);

  [[nodiscard]] const ModelSizes& sizes() const { return sizes_; }
  /// The shape of a pool with all heads.
  [[nodiscard]] KvShape kv_shape(std::int64_t page_tokens, std::int64_t pages) const {
    return {sizes_.layers, sizes_.kv_heads, sizes_.head_width, page_tokens, pages, DType::float32};
  }
  /// Sets x to the token's embedding.
  Result<void> begin(std::int64_t token);
  /// Makes x the result of a layer's attention. Stores the token's keys and values in their pages.
  ///   shapes   layer: its weights, those of the attention first; residual [1, width], which is added;
  ///            kv: this layer's pages; sequence: has the token's slot, the last one
  Result<void> attention(std::span<const Tensor> layer, const TensorView& residual, const TensorView& kv,
                         const Sequence& sequence);
  /// Makes x the first output of a package.
  Result<void> become(Model& package, std::span<const TensorView> inputs);
  /// [1, width]
  [[nodiscard]] TensorView x() const { return x_.front().view(); }
  /// The numbers of x, which the caller may change.
  [[nodiscard]] std::span<float> x_elements() { return x_.front().elements<float>(); }
  /// The logits of the token that follows.
  [[nodiscard]] Result<std::span<const float>> logits();

 private:
  StepModel(Model embed, Model attention, Model store, Model head)
      : embed_(std::move(embed)),
        attention_(std::move(attention)),
        store_(std::move(store)),
        head_(std::move(head)) {}

  Model embed_, attention_, store_, head_;
  ModelSizes sizes_;
  Tensor embedding_, norm_;
  std::vector<Tensor> x_, outputs_, nothing_, logits_;
};

/// The checksum by which logits of two processes are compared, bit for bit.
[[nodiscard]] std::uint64_t logits_checksum(std::span<const float> logits);

/// A text, and the checksum of the logits of each token but the first, which the whole model gives.
struct CheckedText {
  std::vector<std::int64_t> tokens;
  std::vector<std::uint64_t> logits;
};

}  // namespace headrace::cli::demo
