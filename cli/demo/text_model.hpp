// SPDX-License-Identifier: Apache-2.0
// The demo's language model: compiled packages, and the weights that are inputs of them.
#pragma once

#include <headrace/model.hpp>

#include "cli/demo/kv_pool.hpp"
#include "cli/demo/model_files.hpp"
#include "cli/demo/sampling.hpp"

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace headrace::cli::demo {

///   threads  one
class TextModel {
 public:
  /// Opens the packages for the device, "cpu" or "cuda:0", and copies the weights to it.
  ///   errors  those of Model::open; corrupt (the file lacks a weight; the text names it)
  static Result<TextModel> open(const ModelFiles& files, const std::string& device);

  [[nodiscard]] const ModelSizes& sizes() const { return sizes_; }
  [[nodiscard]] Device device() const { return layer_.info().device; }
  [[nodiscard]] KvShape kv_shape(std::int64_t page_tokens, std::int64_t pages) const;

  /// Runs the next tokens of a sequence and stores their keys and values in its pages, which must suffice. On
  /// a GPU it returns when all work is queued, unless `layer_done` is set.
  ///   layer_done  called after each layer, when its keys and values are in their pages
  Result<void> take(std::span<const std::int64_t> tokens, KvPool& pool, Sequence& sequence,
                    const std::function<Result<void>(std::int64_t layer)>& layer_done = {});
  /// The logits of the token that follows the last one taken.
  [[nodiscard]] Result<std::span<const float>> logits();

 private:
  TextModel(Model embed, Model layer, Model head, Model store)
      : embed_(std::move(embed)),
        layer_(std::move(layer)),
        head_(std::move(head)),
        store_(std::move(store)) {}
  Result<void> take_weights(const std::string& file);
  Result<void> make_weights(const ModelFiles& files);
  Result<void> find_weights();
  Result<Tensor> placed(const TensorView& host);

  Model embed_, layer_, head_, store_;
  ModelSizes sizes_;
  NamedTensors weights_;  // on the device
  TensorView embedding_, norm_;
  std::vector<std::vector<TensorView>> layers_;  // the inputs of each layer after x, kv and slots
  std::vector<Tensor> x_, embedded_, logits_, nothing_;
  std::vector<float> host_logits_;
};

/// Runs a prompt in chunks of `chunk_tokens` tokens. Every process of the demo uses the same chunks: others
/// would give other rounding.
Result<void> run_prompt(TextModel& model, std::span<const std::int64_t> prompt, std::size_t chunk_tokens,
                        KvPool& pool, Sequence& sequence,
                        const std::function<Result<void>(std::size_t begin, std::size_t end,
                                                         std::int64_t layer)>& layer_done = {});

/// A text whose prompt has run in this process alone. The pool has pages for all of it.
struct BegunText {
  KvPool pool;
  Sequence sequence;
  std::int64_t first = 0;  ///< the first token after the prompt
};
Result<BegunText> begin_alone(TextModel& model, std::span<const std::int64_t> prompt, std::size_t count,
                              const Sampling& sampling, std::size_t chunk_tokens, std::int64_t page_tokens);

/// Generates a text in this process alone; --check compares with it.
Result<std::vector<std::int64_t>> generate_alone(TextModel& model, std::span<const std::int64_t> prompt,
                                                 std::size_t count, const Sampling& sampling,
                                                 std::size_t chunk_tokens, std::int64_t page_tokens);

}  // namespace headrace::cli::demo
