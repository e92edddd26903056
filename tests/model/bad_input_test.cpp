// SPDX-License-Identifier: Apache-2.0
// Inputs that AOTInductor itself accepts, with wrong numbers or a crash at the end. Here each is an error
// before the run.
#include "model/model_fixture.hpp"

#include <fmt/format.h>

#include <array>

namespace headrace {
namespace {

using testing::counted;
using ::testing::HasSubstr;
using testing::package_path;

class BadInput : public testing::ModelTest {
 protected:
  /// The error of `run` for these inputs, which it must refuse.
  static std::string refusal(Model& model, std::span<const TensorView> inputs) {
    const std::uint64_t before = model.timing().run_ns.count;
    const auto outputs = model.run(inputs);
    EXPECT_FALSE(outputs);
    EXPECT_EQ(outputs.code(), Code::invalid_argument);
    EXPECT_EQ(model.timing().run_ns.count, before);
    return outputs ? "" : outputs.error().message;
  }
  static std::string refusal(Model& model, const TensorView& input) {
    return refusal(model, std::span(&input, 1));
  }
};

TEST_F(BadInput, a_fused_kernel_refuses_another_length_type_rank_or_stride) {
  Model model = open("add");
  const Tensor large = counted({4096});
  const TensorView right{large.data(), DType::float32, {1024}, {}, {}};
  ASSERT_TRUE(model.run(std::span(&right, 1)));

  for (const std::int64_t length : {0, 16, 1023, 1025, 4096}) {
    TensorView view = right;
    view.shape = {length};
    EXPECT_THAT(refusal(model, view),
                HasSubstr(fmt::format(
                    "float32 [{}], and float32 [1024] is expected: dimension 0 must be 1024, and is {}",
                    length, length)));
  }
  TensorView view = right;
  view.shape = {2, 512};
  EXPECT_THAT(refusal(model, view), HasSubstr("it must have 1 dimension, and has 2"));
  view.shape = {};
  EXPECT_THAT(refusal(model, view), HasSubstr("it must have 1 dimension, and has 0"));
  for (const DType type :
       {DType::float64, DType::float16, DType::bfloat16, DType::int64, DType::int32, DType::boolean}) {
    view = right;
    view.dtype = type;
    EXPECT_THAT(refusal(model, view), HasSubstr("its type must be float32"));
  }
  view = right;
  view.strides = {2};
  EXPECT_THAT(refusal(model, view), HasSubstr("row-major order without gaps"));
  view.strides = {1, 1};
  EXPECT_THAT(refusal(model, view), HasSubstr("one stride for each dimension"));
  view = right;
  view.data = nullptr;
  EXPECT_THAT(refusal(model, view), HasSubstr("has no memory"));
  view = right;
  view.device = {Device::Kind::cuda, 0};
  EXPECT_THAT(refusal(model, view), HasSubstr("it is on cuda:0, and the model runs on cpu"));
  EXPECT_TRUE(model.run(std::span(&right, 1)));
}

TEST_F(BadInput, another_number_of_inputs_is_refused) {
  Model model = open("mixed");
  const Tensor a = counted({16});
  EXPECT_THAT(refusal(model, std::span<const TensorView>()),
              HasSubstr("0 inputs are given, and the model takes 4: a, bias, m, ids"));
  EXPECT_THAT(refusal(model, std::array<TensorView, 1>{a}),
              HasSubstr("1 input is given, and the model takes 4"));
  EXPECT_THAT(refusal(model, std::array<TensorView, 5>{a, a, a, a, a}), HasSubstr("5 inputs are given"));
}

TEST_F(BadInput, a_matrix_product_refuses_another_shape_or_order) {
  Model model = open("mixed");
  const Tensor a = counted({16}), ids = Tensor::zeros(DType::int64, {5}).value();
  const Tensor one = counted({1}), narrow = counted({2, 3}), square = counted({4, 4});
  EXPECT_THAT(refusal(model, std::array<TensorView, 4>{a, one, square, ids}),
              HasSubstr("input 1 (bias) is float32 [1], and float32 [16] is expected"));
  EXPECT_THAT(refusal(model, std::array<TensorView, 4>{a, a, narrow, ids}),
              HasSubstr("input 2 (m) is float32 [2, 3]"));
  TensorView transposed = square;
  transposed.strides = {1, 4};
  EXPECT_THAT(refusal(model, std::array<TensorView, 4>{a, a, transposed, ids}),
              HasSubstr("with strides [1, 4]"));
}

TEST_F(BadInput, indices_of_another_type_are_refused) {
  Model model = open("mixed");
  const Tensor a = counted({16}), m = counted({2, 4}), ids = Tensor::zeros(DType::int32, {5}).value();
  EXPECT_THAT(refusal(model, std::array<TensorView, 4>{a, a, m, ids}),
              HasSubstr("input 3 (ids) is int32 [5], and int64 [5] is expected"));
}

TEST_F(BadInput, a_convolution_refuses_another_shape) {
  Model model = open("convolution");
  const Tensor small = counted({1, 3, 16, 16}), empty = counted({0, 3, 32, 32}),
               right = counted({1, 3, 32, 32});
  EXPECT_THAT(refusal(model, small), HasSubstr("dimension 2 must be 32, and is 16"));
  EXPECT_THAT(refusal(model, empty), HasSubstr("dimension 0 must be 1, and is 0"));
  EXPECT_TRUE(model.run(std::array<TensorView, 1>{right}));
}

TEST_F(BadInput, a_dynamic_dimension_has_bounds_and_one_lies_within_them) {
  Model model = open("mlp");
  const Tensor whole = counted({65, 256});
  TensorView view = whole;
  EXPECT_THAT(refusal(model, view), HasSubstr("dimension 0 (batch) must be at most 64, and is 65"));
  view.shape = {0, 256};
  EXPECT_THAT(refusal(model, view), HasSubstr("dimension 0 (batch) must be at least 1, and is 0"));
  view.shape = {1, 256};
  EXPECT_TRUE(model.run(std::span(&view, 1)));
}

TEST_F(BadInput, a_package_without_our_description_is_checked_by_its_generated_code) {
  const auto info = Model::inspect(package_path("add"));
  ASSERT_TRUE(info) << info.error().message;
  EXPECT_EQ(info->spec_source, SpecSource::generated_code);
  EXPECT_TRUE(info->warnings.empty())
      << "a package of torch itself does not name its torch, so there must be no warning: "
      << info->warnings.front();
  EXPECT_EQ(spec_text(info->inputs[0]), "float32 [1024]");
  const auto exported = Model::inspect(package_path("mlp"));
  ASSERT_TRUE(exported);
  EXPECT_EQ(exported->spec_source, SpecSource::exported);
  EXPECT_EQ(spec_text(exported->inputs[0]), "float32 [batch 1..64, 256]");
}

TEST_F(BadInput, check_returns_the_error_of_run_without_running) {
  Model model = open("add");
  const Tensor wrong = counted({3});
  const auto checked = model.check(std::array<TensorView, 1>{wrong});
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().message, model.run(std::array<TensorView, 1>{wrong}).error().message);
}

}  // namespace
}  // namespace headrace
