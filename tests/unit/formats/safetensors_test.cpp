// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.hpp"

#include "unit/formats/named_tensor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace headrace::formats {
namespace {

using ::testing::HasSubstr;

std::string file_of(const std::string& json, std::size_t data_bytes) {
  const std::uint64_t length = json.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file + json + std::string(data_bytes, 'd');
}

Result<SafetensorsHeader> read_file(const std::string& file) {
  return read_safetensors(std::as_bytes(std::span(file)), file.size());
}

TEST(Safetensors, AWrittenHeaderIsReadBack) {
  const std::vector<TensorInfo> tensors{named_tensor("a", "F16", {2, 3}),
                                        named_tensor("empty", "F32", {0, 7}),
                                        named_tensor("scalar", "BF16", {}), named_tensor("b/c", "F4", {4})};
  const std::string header = write_safetensors(tensors, {{"format", "pt"}}).value();
  EXPECT_EQ(header.size() % 8, 0U);
  const auto back = read_file(header + std::string(12 + 2 + 2, 'x'));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->metadata.at("format"), "pt");
  ASSERT_EQ(back->tensors.size(), 4U);
  EXPECT_EQ(back->tensors[0].info.name, "a");
  EXPECT_EQ(back->tensors[0].info.shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(back->tensors[0].offset, header.size());
  EXPECT_EQ(back->tensors[1].info.bytes, 0U);
  EXPECT_EQ(back->tensors[2].info.bytes, 2U);
  EXPECT_EQ(back->tensors[3].offset, header.size() + 14);
}

TEST(Safetensors, TensorsAreOrderedByOffsetWhateverTheOrderInTheHeader) {
  const auto header = read_file(file_of(
      R"({"z":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"y":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      2));
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->tensors[0].info.name, "y");
}

struct Hostile {
  const char* what;
  std::string file;
  const char* said;
};

class HostileSafetensors : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileSafetensors, AHostileFileIsRefusedWithASentence) {
  const auto header = read_file(GetParam().file);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.code(), Code::corrupt);
  EXPECT_THAT(header.error().message, HasSubstr(GetParam().said));
}

std::string one(const std::string& fields, std::size_t data_bytes) {
  return file_of(R"({"t":{)" + fields + "}}", data_bytes);
}

std::string claiming(std::uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + "{}";
}

INSTANTIATE_TEST_SUITE_P(
    Files, HostileSafetensors,
    ::testing::Values(
        Hostile{"too_short", "abc", "too few"},
        Hostile{"header_beyond_the_end", claiming(1000), "claims 1000 bytes"},
        Hostile{"huge_header", claiming(~std::uint64_t{0}), "the limit is"},
        Hostile{"not_json", file_of("{nonsense", 0), "not JSON"},
        Hostile{"an_array", file_of("[1]", 0), "brace"},
        Hostile{"deep_nesting",
                file_of("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0),
                "not described by an object"},
        Hostile{
            "name_twice",
            file_of(
                R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                1),
            "twice"},
        Hostile{
            "empty_name_twice",
            file_of(
                R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                1),
            "twice"},
        Hostile{"nul_in_a_name",
                file_of(R"({"a\u0000b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
                R"(the name "a\x00b" has a control character)"},
        Hostile{"escape_in_a_name",
                file_of(R"({"a\u001b[2J":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
                R"("a\x1b[2J")"},
        Hostile{"not_an_object", file_of(R"({"t":3})", 0), "not described by an object"},
        Hostile{"no_shape", one(R"("dtype":"U8","data_offsets":[0,1])", 1), "lacks"},
        Hostile{"unknown_type", one(R"("dtype":"X9","shape":[1],"data_offsets":[0,1])", 1), "X9"},
        Hostile{"negative_length", one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])", 1), "shape"},
        Hostile{"fractional_length", one(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])", 1), "shape"},
        Hostile{"overflowing_shape",
                one(R"("dtype":"F64","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,1])", 1),
                "larger than any memory"},
        Hostile{
            "many_dimensions",
            one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])",
                1),
            "65 dimensions"},
        Hostile{"half_a_byte", one(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])", 1), "last byte"},
        Hostile{"shape_and_length_differ", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", 4),
                "needs 8 bytes, and has 4"},
        Hostile{"backwards", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])", 1), "outside"},
        Hostile{"beyond_the_data", one(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])", 1), "outside"},
        Hostile{"three_offsets", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,1])", 1), "two offsets"},
        Hostile{"a_hole", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])", 2), "hole"},
        Hostile{
            "an_overlap",
            file_of(
                R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                3),
            "overlap"},
        Hostile{"bytes_of_nobody", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])", 5),
                "belong to no tensor"},
        Hostile{"metadata_no_object", file_of(R"({"__metadata__":3})", 0), "__metadata__"},
        Hostile{"metadata_no_text", file_of(R"({"__metadata__":{"a":1}})", 0), "not text"}),
    [](const auto& chosen) { return chosen.param.what; });

TEST(Safetensors, ATypeThatTheFormatLacksIsRefused) {
  const auto header = write_safetensors(std::vector{named_tensor("c", "C128", {1})}, {});
  ASSERT_FALSE(header.ok());
  EXPECT_THAT(header.error().message, HasSubstr(".npz"));
}

TEST(Safetensors, TensorsWhoseBytesWrapAreRefusedWithTheName) {
  const std::vector tensors{
      named_tensor("a", "U8", {std::uint64_t{1} << 60}), named_tensor("b", "U8", {std::uint64_t{1} << 60}),
      named_tensor("c", "U8", {std::uint64_t{1} << 60}), named_tensor("d", "U8", {std::uint64_t{1} << 60}),
      named_tensor("e", "U8", {std::uint64_t{1} << 60})};
  EXPECT_TRUE(write_safetensors(std::span(tensors).first(4), {}).ok());
  const auto header = write_safetensors(tensors, {});
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.code(), Code::invalid_argument);
  EXPECT_THAT(header.error().message, HasSubstr("tensor \"e\" of 1152921504606846976 bytes is too large"));
}

TEST(Safetensors, ANameWithAControlCharacterIsNotWritten) {
  const auto header = write_safetensors(std::vector{named_tensor("a\n", "U8", {1})}, {});
  EXPECT_THAT(header.error().message, HasSubstr(R"(the name of tensor "a\x0a" has a control character)"));
}

TEST(Safetensors, ANameThatIsNotUtf8IsRefused) {
  EXPECT_FALSE(write_safetensors(std::vector{named_tensor("\xff", "U8", {1})}, {}).ok());
}

TEST(Safetensors, TheMetadataOfAHeaderIsReadWithoutItsTensors) {
  const std::string header =
      write_safetensors(std::vector{named_tensor("a", "U8", {1000})}, {{"k", "v"}}).value();
  EXPECT_EQ(safetensors_metadata(std::as_bytes(std::span(header))).at("k"), "v");
  const std::string broken = header.substr(0, header.size() - 9);
  EXPECT_TRUE(safetensors_metadata(std::as_bytes(std::span(broken))).empty());
}

}  // namespace
}  // namespace headrace::formats
