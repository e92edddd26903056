// SPDX-License-Identifier: Apache-2.0
// The demo's language model: packages, and the weights that they take as inputs.
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

/// Where a model comes from.
struct ModelFiles {
  std::string packages;  ///< folder of embed.pt2, layer.pt2, head.pt2, store.pt2
  /// safetensors, bf16 or f32; empty: random_layer.pt2 and random_ends.pt2 of the folder make the weights,
  /// the same in every process, on the device itself
  std::string weights;
};

struct ModelSizes {
  std::int64_t width = 0, layers = 0, kv_heads = 0, head_width = 0, vocabulary = 0, context = 0;
};

/// As the weights file tells them, or else sizes.json of the packages' folder.
///   errors  not_found, corrupt
Result<ModelSizes> read_model_sizes(const ModelFiles& files);

///   threads  one
class TextModel {
 public:
  /// Opens the packages for the device, "cpu" or "cuda:0", and puts the weights there.
  ///   errors  those of Model::open; corrupt (the file lacks a weight: which)
  static Result<TextModel> open(const ModelFiles& files, const std::string& device);

  [[nodiscard]] const ModelSizes& sizes() const { return sizes_; }
  [[nodiscard]] Device device() const { return layer_.info().device; }
  [[nodiscard]] KvShape kv_shape(std::int64_t page_tokens, std::int64_t pages) const;

  /// Takes the next tokens of a sequence into the cache. The sequence has pages for them. On a GPU it returns
  /// when all is queued, unless each layer is waited for.
  ///   layer_done  called after each layer, when its keys and values lie in their pages
  Result<void> take(std::span<const std::int64_t> tokens, KvPool& pool, Sequence& sequence,
                    const std::function<Result<void>(std::int64_t layer)>& layer_done = {});
  /// Of the last token taken: how likely each next one is.
  [[nodiscard]] Result<std::span<const float>> logits();

 private:
  TextModel(Model embed, Model layer, Model head, Model store)
      : embed_(std::move(embed)),
        layer_(std::move(layer)),
        head_(std::move(head)),
        store_(std::move(store)) {}
  Result<void> read_weights(const std::string& file);
  Result<void> make_weights(const ModelFiles& files);
  Result<void> find_weights();
  Result<TensorView> weight(const std::string& name) const;
  Result<Tensor> placed(const TensorView& host);

  Model embed_, layer_, head_, store_;
  ModelSizes sizes_;
  std::map<std::string, Tensor> weights_;  // on the device
  TensorView embedding_, norm_;
  std::vector<std::vector<TensorView>> layers_;  // the inputs of each layer behind x, kv and slots
  std::vector<Tensor> x_, embedded_, logits_, nothing_;
  std::vector<float> host_logits_;
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
