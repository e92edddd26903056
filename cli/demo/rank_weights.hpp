// SPDX-License-Identifier: Apache-2.0
// The weights of one rank of several that share each layer, cut out of the whole weights.
#pragma once

#include "cli/demo/kv_pool.hpp"
#include "cli/demo/model_files.hpp"

#include <span>
#include <vector>

namespace headrace::cli::demo {

/// Cuts out one rank's part of a layer: its heads and its share of the feed-forward width. `layer_part` of
/// python/headrace/demo_model/split.py cuts out the same.
///   shapes  layer: the tensors of `layer_weights` in host memory, in their order; so is the result
///   errors  corrupt (the ranks cannot share a weight; the text names it)
Result<std::vector<Tensor>> cut_layer(std::span<const TensorView> layer, const ModelSizes& sizes, Rank rank);

}  // namespace headrace::cli::demo
