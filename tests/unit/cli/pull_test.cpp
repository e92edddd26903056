// SPDX-License-Identifier: Apache-2.0
// The decisions of a pull apart from moving bytes: notes, selection, layout, the part file.
#include "cli/output_file.hpp"
#include "cli/pull_plan.hpp"
#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

namespace headrace::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

ServedTensor served(const std::string& name, const char* type, std::vector<std::uint64_t> shape,
                    std::uint64_t index) {
  ServedTensor tensor{{name, formats::element_type(type), std::move(shape), 0},
                      0x1234 + index,
                      index,
                      RegionId{static_cast<std::uint32_t>(index + 1)}};
  tensor.info.bytes = formats::tensor_bytes(*tensor.info.type, tensor.info.shape).value();
  return tensor;
}

Region region_of(const ServedTensor& tensor, bool with_name = false) {
  Region region;
  region.id = tensor.region;
  region.name = with_name ? "tensor" : tensor.info.name;
  region.note = write_note(tensor, with_name);
  region.length_bytes = std::max<std::uint64_t>(1, tensor.info.bytes);
  return region;
}

std::vector<std::string> names_of(const std::vector<ServedTensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& tensor : tensors) names.push_back(tensor.info.name);
  return names;
}

TEST(Notes, ATensorIsDescribedByItsRegionOnly) {
  const ServedTensor second = served("b", "F32", {0}, 1), first = served("a", "BF16", {3, 5}, 0);
  Region other;
  other.name = "cache";
  other.note = "something else";
  const auto all = read_notes(std::vector{region_of(second), other, region_of(first)});
  ASSERT_TRUE(all.ok()) << all.error().message;
  ASSERT_THAT(names_of(all->tensors), ElementsAre("a", "b"));
  EXPECT_EQ(all->tensors[0].info.shape, first.info.shape);
  EXPECT_EQ(all->tensors[0].checksum, first.checksum);
  EXPECT_EQ(all->tensors[0].region, first.region);
}

TEST(Notes, ANameTooLongForARegionStandsInTheNote) {
  const ServedTensor tensor = served(std::string(300, 'n'), "U8", {1}, 0);
  EXPECT_EQ(read_notes(std::vector{region_of(tensor, true)})->tensors[0].info.name, tensor.info.name);
}

TEST(Notes, ANoteThatContradictsItselfIsRefused) {
  for (const char* note :
       {R"({"dtype":"F32"})", R"({"dtype":"F32","shape":[2],"bytes":4,"xxh3":"0000000000000000","index":0})",
        R"({"dtype":"F32","shape":[2],"bytes":8,"xxh3":"zz","index":0})",
        R"({"dtype":"Q7","shape":[2],"bytes":8,"xxh3":"0000000000000000","index":0})",
        R"({"dtype":"F32","shape":[-2],"bytes":8,"xxh3":"0000000000000000","index":0})",
        R"({"dtype":"F32","shape":[3],"bytes":12,"xxh3":"0000000000000000","index":0})"}) {
    Region region;
    region.name = "t";
    region.length_bytes = 8;
    region.note = note;
    const auto all = read_notes(std::vector{region});
    ASSERT_FALSE(all.ok()) << note;
    EXPECT_EQ(all.code(), Code::corrupt);
  }
}

TEST(Notes, TwoTensorsOfOneNameAreRefused) {
  const ServedTensor tensor = served("t", "U8", {1}, 0);
  EXPECT_THAT(read_notes(std::vector{region_of(tensor), region_of(tensor)}).error().message,
              HasSubstr("two tensors"));
}

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
  EXPECT_THAT(error.message, HasSubstr("embed.weight"));
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

class PartFile : public testing::Test {
 protected:
  const test::TemporaryFolder folder_;
  const fs::path path_ = fs::path(folder_.path()) / "out.safetensors";
};

TEST_F(PartFile, TheFileAppearsUnderItsNameWhenItIsFinished) {
  auto file = OutputFile::open(path_, 5, 1, true);
  ASSERT_TRUE(file.ok()) << file.error().message;
  std::memcpy(file->bytes().data(), "hello", 5);
  EXPECT_FALSE(fs::exists(path_));
  ASSERT_TRUE(file->finish(true, IfTaken::keep).ok());
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "hello");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()), 1);
}

TEST_F(PartFile, AFileThatAppearedMeanwhileIsKeptOrReplacedAsAsked) {
  auto file = OutputFile::open(path_, 5, 1, true);
  ASSERT_TRUE(file.ok()) << file.error().message;
  std::memcpy(file->bytes().data(), "hello", 5);
  std::ofstream(path_) << "other";
  const auto read = [&] {
    std::string text;
    std::ifstream(path_) >> text;
    return text;
  };
  EXPECT_EQ(file->finish(false, IfTaken::keep).code(), Code::invalid_argument);
  EXPECT_EQ(read(), "other");
  EXPECT_TRUE(fs::exists(path_.string() + ".part"));
  EXPECT_TRUE(file->finish(false, IfTaken::replace).ok());
  EXPECT_EQ(read(), "hello");
}

TEST_F(PartFile, BytesFromWriteAppearInTheMappedMemory) {
  auto file = OutputFile::open(path_, 10'000, 1, true);
  ASSERT_TRUE(file.ok()) << file.error().message;
  file->bytes()[4999] = std::byte{1};
  const std::vector<std::byte> part(3000, std::byte{2});
  ASSERT_TRUE(file->write(5000, part).ok());
  EXPECT_EQ(file->bytes()[4999], std::byte{1});
  EXPECT_EQ(file->bytes()[5000], std::byte{2});
  EXPECT_EQ(file->bytes()[7999], std::byte{2});
  EXPECT_EQ(file->bytes()[8000], std::byte{0});
}

TEST_F(PartFile, APartFileIsResumedByTheSamePlan) {
  {
    auto file = OutputFile::open(path_, 100, 7, true);
    file->bytes()[3] = std::byte{42};
    ASSERT_TRUE(file->note_complete(0, 0xabc).ok());
    ASSERT_TRUE(file->note_complete(2, 0xdef).ok());
  }
  std::ofstream(path_.string() + ".part.state", std::ios::app) << "3 00";  // a line cut off by a kill
  {
    auto file = OutputFile::open(path_, 100, 7, true);
    EXPECT_EQ(file->complete(), (std::map<std::uint64_t, std::uint64_t>{{0, 0xabc}, {2, 0xdef}}));
    EXPECT_EQ(file->bytes()[3], std::byte{42});
    EXPECT_FALSE(file->started_over());
    ASSERT_TRUE(file->note_complete(4, 0x1).ok());
  }
  const auto file = OutputFile::open(path_, 100, 7, true);
  EXPECT_TRUE(file->complete().contains(4));
}

TEST_F(PartFile, APartFileOfAnotherPlanIsStartedOver) {
  { ASSERT_TRUE(OutputFile::open(path_, 100, 7, true)->note_complete(0, 1).ok()); }
  const auto file = OutputFile::open(path_, 100, 8, true);
  EXPECT_TRUE(file->started_over());
  EXPECT_TRUE(file->complete().empty());
}

TEST_F(PartFile, APartFileIsNotResumedUnlessAsked) {
  { ASSERT_TRUE(OutputFile::open(path_, 100, 7, true)->note_complete(0, 1).ok()); }
  EXPECT_TRUE(OutputFile::open(path_, 100, 7, false)->complete().empty());
}

TEST_F(PartFile, APartFileHasOneWriterAtATime) {
  const auto first = OutputFile::open(path_, 100, 7, true);
  const auto second = OutputFile::open(path_, 100, 7, true);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.code(), Code::would_block);
}

TEST_F(PartFile, APartFileIsNotCreatedWhereAFolderHasTheName) {
  fs::create_directory(path_);
  const auto file = OutputFile::open(path_, 100, 7, true);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, HasSubstr("is a folder"));
  EXPECT_FALSE(fs::exists(path_.string() + ".part"));
}

TEST_F(PartFile, AFileTooLargeForTheDiskIsRefusedBeforeAnyMove) {
  const auto file = OutputFile::open(path_, std::uint64_t{1} << 50, 7, true);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.code(), Code::exhausted);
  EXPECT_THAT(file.error().message, HasSubstr("the disk has "));
  EXPECT_FALSE(fs::exists(path_.string() + ".part"));
}

}  // namespace
}  // namespace headrace::cli
