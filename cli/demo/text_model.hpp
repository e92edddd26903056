// SPDX-License-Identifier: Apache-2.0
// The demo's language model: three packages, and the weights that they take as inputs.
#pragma once

#include <headrace/model.hpp>

#include "cli/demo/kv_pool.hpp"
#include "cli/demo/sampling.hpp"

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace headrace::cli::demo {

/// Lengths that the weights file tells.
struct ModelSizes {
  std::int64_t width = 0, layers = 0, kv_heads = 0, head_width = 0, vocabulary = 0, context = 0;
};

/// Of a weights file.
///   errors  not_found, corrupt
Result<ModelSizes> read_model_sizes(const std::string& weights_file);

///   threads  one
class TextModel {
 public:
  /// Opens embed.pt2, layer.pt2 and head.pt2 of a folder, and a weights file (bf16 or f32, safetensors).
  ///   errors  those of Model::open; corrupt (the file lacks a weight: which)
  static Result<TextModel> open(const std::string& packages, const std::string& weights_file);

  [[nodiscard]] const ModelSizes& sizes() const { return sizes_; }
  [[nodiscard]] KvShape kv_shape(std::int64_t page_tokens, std::int64_t pages) const {
    return {sizes_.layers, sizes_.kv_heads, sizes_.head_width, page_tokens, pages};
  }

  /// Takes the next tokens of a sequence into the cache. The sequence has pages for them.
  ///   layer_done  called after each layer, when its keys and values lie in their pages
  Result<void> take(std::span<const std::int64_t> tokens, KvPool& pool, Sequence& sequence,
                    const std::function<Result<void>(std::int64_t layer)>& layer_done = {});
  /// Of the last token taken: how likely each next one is.
  [[nodiscard]] Result<std::span<const float>> logits();

 private:
  TextModel(Model embed, Model layer, Model head)
      : embed_(std::move(embed)), layer_(std::move(layer)), head_(std::move(head)) {}
  Result<void> load_weights(const std::string& file);
  Result<TensorView> weight(const std::string& name) const;

  Model embed_, layer_, head_;
  ModelSizes sizes_;
  std::map<std::string, Tensor> weights_;  // float32
  TensorView embedding_, norm_;
  std::vector<std::vector<TensorView>> layers_;  // the inputs of each layer behind x, kv and slots
  std::vector<Tensor> x_, embedded_, logits_;
};

/// Runs a prompt in chunks of so many tokens, as every process of the demo does: other chunks give other
/// sums.
Result<void> run_prompt(TextModel& model, std::span<const std::int64_t> prompt, std::size_t chunk_tokens,
                        KvPool& pool, Sequence& sequence,
                        const std::function<Result<void>(std::size_t begin, std::size_t end,
                                                         std::int64_t layer)>& layer_done = {});

/// Generates in this process alone: what all others are compared with.
Result<std::vector<std::int64_t>> generate_alone(TextModel& model, std::span<const std::int64_t> prompt,
                                                 std::size_t count, const Sampling& sampling,
                                                 std::size_t chunk_tokens, std::int64_t page_tokens);

}  // namespace headrace::cli::demo
