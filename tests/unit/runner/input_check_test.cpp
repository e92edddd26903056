// SPDX-License-Identifier: Apache-2.0
#include "runner/input_check.hpp"

#include "runner/io_spec.hpp"

#include <gmock/gmock.h>

#include <array>

namespace headrace {
namespace {

using ::testing::HasSubstr;

/// x [batch, 4], y [2*batch], and z, which is optional and stored by columns.
const char* const spec_json = R"({"headrace_io": 1, "inputs": [
  {"name": "x", "dtype": "float32", "shape": [{"name": "batch", "min": 1, "max": 8}, 4]},
  {"name": "y", "dtype": "int64", "shape": [{"expr": "2*batch"}]},
  {"name": "z", "dtype": "bfloat16", "shape": [{"name": "batch", "min": 1, "max": null}, 3], "strides": [1, 8], "optional": true}],
  "outputs": [], "mutated": ["x"]})";

class InputCheckTest : public ::testing::Test {
 protected:
  InputCheckTest() : spec_(read_io_spec(spec_json).value()), check_(spec_.inputs, Device{}, true) {
    views_[0] = {memory_.data(), DType::float32, {8, 4}, {}, {}};
    views_[1] = {memory_.data(), DType::int64, {16}, {}, {}};
    views_[2] = {memory_.data(), DType::bfloat16, {8, 3}, {1, 8}, {}};
  }
  std::string complaint() {
    const auto checked = check_.check(views_);
    if (checked) return "";
    EXPECT_EQ(checked.code(), Code::invalid_argument);
    return checked.error().message;
  }

  std::array<std::byte, 1024> memory_{};
  IoSpec spec_;
  InputCheck check_;
  std::array<TensorView, 3> views_;
};

TEST_F(InputCheckTest, inputs_that_match_the_description_pass) {
  EXPECT_EQ(complaint(), "");
  EXPECT_TRUE(spec_.inputs[0].mutated);
}

TEST_F(InputCheckTest, lengths_with_the_same_name_must_agree) {
  views_[2].shape = {7, 3};
  EXPECT_THAT(
      complaint(),
      HasSubstr("input 2 (z) has 7 in dimension 0, and input 0 (x) has 8 in dimension 0: both are batch"));
}

TEST_F(InputCheckTest, a_length_computed_from_another_must_match) {
  views_[1].shape = {15};
  EXPECT_THAT(complaint(),
              HasSubstr("input 1 (y) has 15 in dimension 0, and 16 is expected, which is 2*batch here"));
}

TEST_F(InputCheckTest, only_an_optional_input_may_be_left_out) {
  views_[2].data = nullptr;
  EXPECT_EQ(complaint(), "");
  views_[0].data = nullptr;
  EXPECT_THAT(complaint(), HasSubstr("input 0 (x) has no memory"));
}

TEST_F(InputCheckTest, values_that_are_used_as_indices_must_be_in_range) {
  const IoSpec spec = read_io_spec(R"({"headrace_io": 1, "outputs": [], "inputs": [
    {"name": "free", "dtype": "int64", "shape": [2]},
    {"name": "rows", "dtype": "int32", "shape": [2, 3], "strides": [1, 2], "values": {"min": -4, "max": 3}}]})")
                          .value();
  EXPECT_EQ(spec_text(spec.inputs[1]), "int32 [2, 3] with strides [1, 2] of -4..3");
  const InputCheck check(spec.inputs, Device{}, true);
  const std::array<std::int64_t, 2> free{1000, -1000};
  std::array<std::int32_t, 6> rows{-4, 3, 0, 0, 0, 0};
  const std::array<TensorView, 2> views{TensorView{free.data(), DType::int64, {2}, {}, {}},
                                        TensorView{rows.data(), DType::int32, {2, 3}, {1, 2}, {}}};
  ASSERT_TRUE(check.check(views));
  EXPECT_TRUE(check.check_values(views));
  rows[3] = 4;  // [1, 1]
  const auto refused = check.check_values(views);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(
      refused.error().message,
      HasSubstr("input 1 (rows) has the value 4 at element 4, and the model uses its values as indices from "
                "-4 to 3"));
  rows[3] = -5;
  EXPECT_FALSE(check.check_values(views));
}

TEST(IoSpec, values_that_are_no_range_are_corrupt) {
  for (const char* const values : {"7", R"({"min": 3, "max": 2})", R"({"min": 0})",
                                   R"({"min": 0.5, "max": 2})", R"({"min": 0, "max": 18446744073709551615})"})
    EXPECT_EQ(read_io_spec(fmt::format(R"({{"headrace_io": 1, "outputs": [], "inputs": [
      {{"name": "x", "dtype": "int64", "shape": [2], "values": {}}}]}})",
                                       values))
                  .code(),
              Code::corrupt)
        << values;
}

TEST_F(InputCheckTest, required_strides_are_checked) {
  views_[2].strides = {};
  EXPECT_THAT(complaint(), HasSubstr("bfloat16 [batch 1.., 3] with strides [1, 8] is expected"));
}

TEST_F(InputCheckTest, a_length_of_one_may_have_any_stride) {
  views_[0] = {memory_.data(), DType::float32, {1, 4}, {99, 1}, {}};
  views_[1].shape = {2};
  views_[2] = {memory_.data(), DType::bfloat16, {1, 3}, {77, 8}, {}};
  EXPECT_EQ(complaint(), "");
}

TEST_F(InputCheckTest, a_negative_length_is_refused) {
  views_[0].shape = {-1, 4};
  EXPECT_THAT(complaint(), HasSubstr("at least 1, and is -1"));
}

TEST_F(InputCheckTest, without_a_description_every_input_passes) {
  const InputCheck check({}, Device{}, false);
  EXPECT_TRUE(check.check(views_));
  EXPECT_TRUE(check.check({}));
}

TEST(IoSpec, a_wrong_description_is_refused_with_the_wrong_part) {
  const auto message = [](const std::string& inputs) {
    const auto spec = read_io_spec(R"({"headrace_io": 1, "outputs": [], "inputs": )" + inputs + "}");
    return spec ? std::string() : spec.error().message;
  };
  EXPECT_EQ(message("[]"), "");
  EXPECT_THAT(message("{}"), HasSubstr("inputs is not a list"));
  EXPECT_THAT(message("[1]"), HasSubstr("input 0 is not an object"));
  EXPECT_THAT(message(R"([{"name": 5}])"), HasSubstr("name is not a text"));
  EXPECT_THAT(message(R"([{"dtype": "float23"}])"), HasSubstr("\"float23\", which is unknown"));
  EXPECT_THAT(message(R"([{"shape": 4}])"), HasSubstr("shape that is not a list"));
  EXPECT_THAT(message(R"([{"shape": [1.5]}])"), HasSubstr("not a whole number"));
  EXPECT_THAT(message(R"([{"shape": [18446744073709551615]}])"), HasSubstr("not a whole number"));
  EXPECT_THAT(message(R"([{"shape": [{}]}])"), HasSubstr("neither name nor expr"));
  EXPECT_THAT(message(R"([{"shape": [{"name": "n", "min": 5, "max": 4}]}])"),
              HasSubstr("max is below its min"));
  EXPECT_THAT(message(R"([{"shape": [4], "strides": [1, 2]}])"), HasSubstr("with the length of its shape"));
  EXPECT_THAT(
      read_io_spec(R"({"headrace_io": 1, "inputs": [], "outputs": [], "mutated": ["x"]})").error().message,
      HasSubstr("names an input that does not exist"));
  EXPECT_EQ(read_io_spec("[]").code(), Code::corrupt);
  EXPECT_EQ(read_io_spec("{").code(), Code::corrupt);
}

}  // namespace
}  // namespace headrace
