// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/rank_weights.hpp"

#include "cli/common/errors.hpp"

#include <cstring>
#include <initializer_list>

namespace headrace::cli::demo {
namespace {

/// The rank's share of the rows of each group. The matrix has one group below the other.
Result<Tensor> rows_of(const TensorView& matrix, std::initializer_list<std::int64_t> groups, Rank rank) {
  const std::int64_t width = matrix.shape[1];
  const std::size_t row_bytes = static_cast<std::size_t>(width) * element_bytes(matrix.dtype);
  HEADRACE_CLI_TRY(share, Tensor::zeros(matrix.dtype, {matrix.shape[0] / rank.of, width}));
  auto* to = static_cast<std::byte*>(share.data());
  const auto* group_begin = static_cast<const std::byte*>(matrix.data);
  for (const std::int64_t rows : groups) {
    const std::size_t bytes = static_cast<std::size_t>(rows / rank.of) * row_bytes;
    std::memcpy(to, group_begin + static_cast<std::size_t>(rank.number) * bytes, bytes);
    to += bytes;
    group_begin += static_cast<std::size_t>(rows) * row_bytes;
  }
  return share;
}

/// The rank's share of the columns.
Result<Tensor> columns_of(const TensorView& matrix, Rank rank) {
  TensorView share = matrix;
  share.shape = {matrix.shape[0], matrix.shape[1] / rank.of};
  share.strides = {matrix.shape[1], 1};
  share.data = static_cast<const std::byte*>(matrix.data) +
               static_cast<std::size_t>(rank.number * share.shape[1]) * element_bytes(matrix.dtype);
  return Tensor::copy_of(share);
}

}  // namespace

Result<std::vector<Tensor>> cut_layer(std::span<const TensorView> layer, const ModelSizes& sizes, Rank rank) {
  const TensorView &attention_norm = layer[0], &qkv = layer[1], &attention_out = layer[2];
  const TensorView &mlp_norm = layer[3], &gate_up = layer[4], &down = layer[5];
  for (const std::size_t matrix : {1U, 2U, 4U, 5U})
    if (layer[matrix].shape.rank() != 2)
      return fail(Code::corrupt, "weight \"{}\" is not a matrix", layer_weights[matrix]);
  const std::int64_t queries = attention_out.shape[1], keys = sizes.kv_heads * sizes.head_width;
  const std::int64_t hidden = down.shape[1];
  if (qkv.shape[0] != queries + 2 * keys || gate_up.shape[0] != 2 * hidden)
    return fail(Code::corrupt, "weights \"qkv\" {} and \"gate_up\" {} do not fit the others",
                shape_text(qkv.shape), shape_text(gate_up.shape));
  if (sizes.kv_heads % rank.of != 0 || queries % rank.of != 0 || hidden % rank.of != 0)
    return fail(Code::corrupt, "{} ranks cannot share {} heads and a feed-forward width of {}", rank.of,
                sizes.kv_heads, hidden);
  std::vector<Tensor> part;
  const auto add = [&](Result<Tensor> made) -> Result<void> {
    if (!made) return std::move(made).error();
    part.push_back(std::move(*made));
    return {};
  };
  HEADRACE_CLI_CHECK(add(Tensor::copy_of(attention_norm)));
  HEADRACE_CLI_CHECK(add(rows_of(qkv, {queries, keys, keys}, rank)));
  HEADRACE_CLI_CHECK(add(columns_of(attention_out, rank)));
  HEADRACE_CLI_CHECK(add(Tensor::copy_of(mlp_norm)));
  HEADRACE_CLI_CHECK(add(rows_of(gate_up, {hidden, hidden}, rank)));
  HEADRACE_CLI_CHECK(add(columns_of(down, rank)));
  return part;
}

}  // namespace headrace::cli::demo
