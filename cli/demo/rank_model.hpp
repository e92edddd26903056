// SPDX-License-Identifier: Apache-2.0
// The language model as one of several ranks runs it (tensor parallelism), one token at a time: each rank has
// some of the heads, with their keys and values, and a share of the feed-forward width.
//
// A layer is cut where the sums of all ranks meet: after its attention and after its feed-forward part. Each
// half takes x, the same on all ranks, and gives the rank's part of the next x. Rank 0's parts include x
// itself. The sum is made in the order of the ranks.
#pragma once

#include "cli/demo/sampling.hpp"
#include "cli/demo/step_model.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace headrace::cli::demo {

///   threads  one
class RankModel {
 public:
  /// Opens the packages and cuts this rank's weights out of the file. Runs on the CPU.
  ///   errors  not_found (a package of such ranks is missing: the command that makes it); those of
  ///           Model::open; corrupt (the file lacks a weight, or ranks cannot share it; the text names it)
  static Result<RankModel> open(const ModelFiles& files, Rank rank);

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] const ModelSizes& sizes() const { return step_.sizes(); }
  /// The shape of this rank's pool: its heads alone.
  [[nodiscard]] KvShape kv_shape(std::int64_t page_tokens, std::int64_t pages) const;

  /// Sets x to the token's embedding.
  Result<void> begin(std::int64_t token) { return step_.begin(token); }
  /// The rank's part of x after the attention of a layer. Stores the token's keys and values in their pages.
  ///   shapes  sequence: has the token's slot, the last one
  ///   owns    the part is this object's, and is x for the next call: the caller adds the other ranks' parts
  Result<std::span<float>> attention(std::int64_t layer, KvPool& pool, const Sequence& sequence);
  /// The same after the feed-forward part.
  Result<std::span<float>> feed_forward(std::int64_t layer);
  /// The logits of the token that follows.
  [[nodiscard]] Result<std::span<const float>> logits() { return step_.logits(); }

 private:
  RankModel(Rank rank, StepModel step, Model feed_forward)
      : rank_(rank), step_(std::move(step)), feed_forward_(std::move(feed_forward)) {}
  Result<void> take_weights(const std::string& file);
  [[nodiscard]] TensorView residual() const;

  Rank rank_;
  StepModel step_;
  Model feed_forward_;
  Tensor zeros_;
  std::vector<std::vector<Tensor>> layers_;  // this rank's weights
};

/// One rank of those that run in this process, with its pool.
struct RankRun {
  RankModel* model = nullptr;
  KvPool* pool = nullptr;
};

/// Makes each part the sum of the parts of all ranks, those of other processes too.
using AddParts = std::function<Result<void>(std::span<const std::span<float>> parts)>;

/// Runs the next token of a sequence, whose page numbers hold in the pool of every rank.
Result<void> take_token(std::span<const RankRun> ranks, std::int64_t token, Sequence& sequence,
                        const AddParts& add);

/// Generates a text in this process alone, by all ranks one after the other; --check compares with it. The
/// whole model runs the prompt, as in the demo.
Result<CheckedText> generate_by_ranks(const ModelFiles& files, int ranks,
                                      std::span<const std::int64_t> prompt, std::size_t count,
                                      const Sampling& sampling, std::size_t chunk_tokens,
                                      std::int64_t page_tokens);

}  // namespace headrace::cli::demo
