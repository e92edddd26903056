// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/rank_weights.hpp"

#include <gmock/gmock.h>

#include <numeric>

namespace headrace::cli::demo {
namespace {

using ::testing::ElementsAre;

// Width 2, 4 query heads and 2 heads of keys and values of 1 element each, feed-forward width 4.
constexpr ModelSizes tiny{2, 1, 2, 1, 256, 16};

/// A matrix whose element [i, j] is 10 * i + j.
Tensor matrix(std::int64_t rows, std::int64_t columns) {
  Tensor made = *Tensor::zeros(DType::float32, {rows, columns});
  const auto elements = made.elements<float>();
  const auto of_a_row = static_cast<std::size_t>(columns);
  for (std::size_t at = 0; at < elements.size(); ++at) {
    const std::size_t row = at / of_a_row, column = at % of_a_row;
    elements[at] = static_cast<float>(10 * row + column);
  }
  return made;
}

Tensor norm() {
  Tensor made = *Tensor::zeros(DType::float32, {2});
  std::iota(made.elements<float>().begin(), made.elements<float>().end(), 7.0F);
  return made;
}

std::vector<Tensor> whole_layer() {
  std::vector<Tensor> layer;
  layer.push_back(norm());
  layer.push_back(matrix(8, 2));  // queries 0 to 3, keys 4 and 5, values 6 and 7
  layer.push_back(matrix(2, 4));
  layer.push_back(norm());
  layer.push_back(matrix(8, 2));  // gate 0 to 3, up 4 to 7
  layer.push_back(matrix(2, 4));
  return layer;
}

std::vector<TensorView> views_of(const std::vector<Tensor>& layer) { return {layer.begin(), layer.end()}; }

std::vector<float> elements_of(const Tensor& tensor) {
  const auto elements = tensor.elements<float>();
  return {elements.begin(), elements.end()};
}

TEST(CutLayer, a_rank_gets_the_rows_of_its_heads_and_the_columns_that_take_their_results) {
  const std::vector<Tensor> layer = whole_layer();
  const auto part = cut_layer(views_of(layer), tiny, {1, 2});
  ASSERT_TRUE(part) << part.error().message;
  ASSERT_EQ(part->size(), 6U);
  EXPECT_THAT(elements_of((*part)[0]), ElementsAre(7, 8));
  EXPECT_EQ((*part)[1].shape(), Shape({4, 2}));
  EXPECT_THAT(elements_of((*part)[1]), ElementsAre(20, 21, 30, 31, 50, 51, 70, 71));
  EXPECT_EQ((*part)[2].shape(), Shape({2, 2}));
  EXPECT_THAT(elements_of((*part)[2]), ElementsAre(2, 3, 12, 13));
  EXPECT_THAT(elements_of((*part)[4]), ElementsAre(20, 21, 30, 31, 60, 61, 70, 71));
  EXPECT_THAT(elements_of((*part)[5]), ElementsAre(2, 3, 12, 13));
}

TEST(CutLayer, one_rank_of_one_gets_everything) {
  const std::vector<Tensor> layer = whole_layer();
  const auto part = cut_layer(views_of(layer), tiny, {0, 1});
  ASSERT_TRUE(part) << part.error().message;
  for (std::size_t i = 0; i < layer.size(); ++i) {
    EXPECT_EQ((*part)[i].shape(), layer[i].shape()) << layer_weights[i];
    EXPECT_EQ(elements_of((*part)[i]), elements_of(layer[i])) << layer_weights[i];
  }
}

TEST(CutLayer, weights_that_ranks_cannot_share_are_refused) {
  std::vector<Tensor> layer = whole_layer();
  EXPECT_EQ(cut_layer(views_of(layer), tiny, {0, 3}).code(), Code::corrupt);
  layer[1] = matrix(7, 2);
  EXPECT_EQ(cut_layer(views_of(layer), tiny, {0, 2}).code(), Code::corrupt);
  layer[1] = norm();
  EXPECT_EQ(cut_layer(views_of(layer), tiny, {0, 2}).code(), Code::corrupt);
}

}  // namespace
}  // namespace headrace::cli::demo
