// SPDX-License-Identifier: Apache-2.0
#include "cli/pull/pull_plan.hpp"

#include "unit/cli/served_tensor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace headrace::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<ServedTensor> model{served("embed.weight", "F16", {4}, 0),
                                      served("layers.0.up", "F16", {4}, 1),
                                      served("layers.1.up", "F16", {4}, 2), served("odd[0]", "U8", {1}, 3)};

TEST(Selection, NoNamesSelectAllTensorsAndAPatternSelectsItsMatches) {
  EXPECT_EQ(select_tensors(model, {})->size(), 4U);
  EXPECT_THAT(names_of(*select_tensors(model, {"layers.*", "embed.weight", "layers.1.up"})),
              ElementsAre("embed.weight", "layers.0.up", "layers.1.up"));
}

TEST(Selection, AnExactNameIsPreferredToAPattern) {
  EXPECT_THAT(names_of(*select_tensors(model, {"odd[0]"})), ElementsAre("odd[0]"));
}

TEST(Selection, AnUnknownNameIsRefusedWithSimilarNames) {
  const auto error = select_tensors(model, {"embed.wieght"}).error();
  EXPECT_EQ(error.code, Code::not_found);
  EXPECT_THAT(error.message, HasSubstr("no tensor \"embed.wieght\" is served; similar names: embed.weight"));
  EXPECT_THAT(select_tensors(model, {"*.bias"}).error().message, HasSubstr("*.bias"));
}

TEST(Plans, AWholeSafetensorsFileKeepsItsHeaderByteForByte) {
  const std::vector<ServedTensor> tensors{model[0], model[1]};
  const std::string json =
      R"({ "layers.0.up":{"dtype":"F16","shape":[4],"data_offsets":[8,16]},"embed.weight":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}}   )";
  const std::uint64_t length = json.size();
  const std::string header = std::string(reinterpret_cast<const char*>(&length), 8) + json;
  const auto plan = PullPlan::make(tensors, formats::FileFormat::safetensors, header);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->file_bytes(), header.size() + 16);
  std::vector<std::byte> file(plan->file_bytes());
  plan->write_head(file);
  EXPECT_EQ(std::memcmp(file.data(), header.data(), header.size()), 0);
  EXPECT_THAT(plan->offsets(), ElementsAre(header.size(), header.size() + 8));
}

TEST(Plans, ASelectionFromAFileGetsANewHeaderWithTheMetadataOfTheSource) {
  std::vector<formats::TensorInfo> infos;
  for (const auto& tensor : model) infos.push_back(tensor.info);
  const std::string header = formats::write_safetensors(infos, {{"format", "pt"}}).value();
  const auto plan = PullPlan::make({model[1]}, formats::FileFormat::safetensors, header);
  ASSERT_TRUE(plan.ok());
  std::vector<std::byte> file(plan->file_bytes());
  plan->write_head(file);
  const auto back = formats::read_safetensors(file, file.size());
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->metadata.at("format"), "pt");
  ASSERT_EQ(back->tensors.size(), 1U);
  EXPECT_EQ(back->tensors[0].offset, plan->offsets()[0]);
}

TEST(Plans, AnotherChecksumSelectionOrFormatHasAnotherFingerprint) {
  const auto fingerprint = [](std::vector<ServedTensor> tensors, formats::FileFormat format) {
    return PullPlan::make(std::move(tensors), format, {})->fingerprint();
  };
  const std::uint64_t first = fingerprint({model[0], model[1]}, formats::FileFormat::safetensors);
  EXPECT_EQ(first, fingerprint({model[0], model[1]}, formats::FileFormat::safetensors));
  ServedTensor changed = model[0];
  changed.checksum ^= 1;
  EXPECT_NE(first, fingerprint({changed, model[1]}, formats::FileFormat::safetensors));
  EXPECT_NE(first, fingerprint({model[0]}, formats::FileFormat::safetensors));
  EXPECT_NE(first, fingerprint({model[0], model[1]}, formats::FileFormat::npz));
}

}  // namespace
}  // namespace headrace::cli
