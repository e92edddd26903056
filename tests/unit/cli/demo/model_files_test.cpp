// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/model_files.hpp"

#include "cli/common/work_folder.hpp"

#include <gmock/gmock.h>

#include <fstream>

namespace headrace::cli::demo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The sizes in a folder with this sizes.json.
Result<ModelSizes> sizes_in(const std::string& text) {
  const WorkFolder folder = WorkFolder::make().value();
  std::ofstream(folder.path() + "/sizes.json") << text;
  return read_model_sizes({folder.path(), ""});
}

constexpr const char* dense =
    R"({"width": 256, "layers": 6, "kv_heads": 2, "head_width": 32, "vocabulary": 256, "context": 2048)";

TEST(ModelSizes, without_a_word_of_experts_there_are_none) {
  const auto sizes = sizes_in(std::string(dense) + "}");
  ASSERT_TRUE(sizes) << sizes.error().message;
  EXPECT_EQ(sizes->experts, 0);
  EXPECT_EQ(weights_of_layer(*sizes).size(), layer_weights.size());
}

TEST(ModelSizes, of_a_model_with_experts_its_layers_have_a_router) {
  const auto sizes = sizes_in(std::string(dense) + R"(, "experts": 8, "top_k": 2})");
  ASSERT_TRUE(sizes) << sizes.error().message;
  EXPECT_EQ(sizes->experts, 8);
  EXPECT_EQ(sizes->top_k, 2);
  const auto names = weights_of_layer(*sizes);
  EXPECT_THAT(std::vector<std::string>(names.begin() + 3, names.end()),
              ElementsAre("mlp_norm", "router", "gate_up", "down"));
}

TEST(ModelSizes, numbers_of_experts_that_cannot_be_are_refused) {
  for (const char* wrong : {R"(, "experts": 2, "top_k": 3})", R"(, "experts": 8})", R"(, "experts": -1})"}) {
    const auto sizes = sizes_in(std::string(dense) + wrong);
    EXPECT_EQ(sizes.code(), Code::corrupt) << wrong;
    EXPECT_THAT(sizes.error().message, HasSubstr("experts"));
  }
  EXPECT_EQ(sizes_in(std::string(dense) + R"(, "experts": "many"})").code(), Code::corrupt);
}

}  // namespace
}  // namespace headrace::cli::demo
