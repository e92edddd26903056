// SPDX-License-Identifier: Apache-2.0
#include "cli/model/model_tensors.hpp"

#include "support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace headrace::cli {
namespace {

using ::testing::HasSubstr;

class ModelTensors : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  [[nodiscard]] Result<std::vector<NamedTensor>> read_json(const std::string& text) const {
    std::ofstream(path("in.json")) << text;
    return read_tensors(path("in.json"));
  }
  [[nodiscard]] std::string refusal(const std::string& text) const {
    const auto read = read_json(text);
    EXPECT_FALSE(read) << text.substr(0, 100);
    return read ? "" : read.error().message;
  }

  test::TemporaryFolder folder_;
};

std::string lists(std::size_t depth) { return std::string(depth, '[') + "1" + std::string(depth, ']'); }

TEST_F(ModelTensors, ListsDeeperThanTheMostDimensionsAreRefusedAtAnyDepth) {
  EXPECT_TRUE(read_json(R"({"x": )" + lists(most_tensor_dimensions) + "}"));
  // A function that called itself so often would need more than the 8 MiB of a stack: 168 bytes a call.
  for (const std::size_t depth : {most_tensor_dimensions + 1, std::size_t{50'000}}) {
    EXPECT_THAT(refusal(R"({"x": )" + lists(depth) + "}"), HasSubstr("are nested too deep"));
    EXPECT_THAT(refusal(R"({"x": {"shape": [1], "data": )" + lists(depth) + "}}"),
                HasSubstr("are nested too deep"));
    EXPECT_THAT(refusal(R"({"x": {"data": [1], "shape": [)" + lists(depth) + "]}}"),
                HasSubstr("has a list, which is not a length"));
    EXPECT_THAT(refusal(R"({"x": [{"y": )" + lists(depth) + "}]}"),
                HasSubstr("element 0 is an object, not a number"));
  }
}

TEST_F(ModelTensors, A64BitIntegerIsExactOrRefused) {
  for (const char* const number : {"9223372036854775808", "18446744073709551615"})
    EXPECT_THAT(refusal(fmt::format(R"({{"x": [{}]}})", number)),
                HasSubstr(fmt::format("element 0 is {}, which int64 cannot hold", number)));
  EXPECT_THAT(refusal(R"({"x": {"dtype": "int64", "data": [9223372036854775808.0]}})"),
              HasSubstr("which int64 cannot hold"));
  EXPECT_THAT(refusal(R"({"x": {"dtype": "uint64", "data": [-1]}})"), HasSubstr("which uint64 cannot hold"));
  EXPECT_THAT(refusal(R"({"x": {"dtype": "uint64", "data": [18446744073709551616]}})"),
              HasSubstr("which uint64 cannot hold"));

  const auto read = read_json(
      R"({"i": [-9223372036854775808, 9223372036854775807], "u": {"dtype": "uint64", "data": [0, 18446744073709551614]}})");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(tensor_json(read->at(0).tensor.view())["data"].dump(),
            "[-9223372036854775808,9223372036854775807]");
  EXPECT_EQ(tensor_json(read->at(1).tensor.view())["data"].dump(), "[0,18446744073709551614]");
}

TEST_F(ModelTensors, AFifoIsRefusedWithoutWaitingForAWriter) {
  for (const char* const name : {"x.npy", "x.npz", "x.safetensors", "x.json"}) {
    ASSERT_EQ(::mkfifo(path(name).c_str(), 0600), 0);
    const auto read = read_tensors(path(name));
    ASSERT_FALSE(read);
    EXPECT_THAT(read.error().message, HasSubstr("is not a regular file"));
  }
}

TEST_F(ModelTensors, AnExistingFileIsReplacedOnlyIfAsked) {
  const float one = 1;
  const std::vector<NamedView> tensors{{"x", {&one, DType::float32, {1}, {}, {}}}};
  const std::string file = path("out.npy");
  ASSERT_TRUE(check_output(file, IfTaken::keep));
  ASSERT_TRUE(write_tensors(file, tensors, IfTaken::keep));
  std::ofstream(file, std::ios::trunc) << "other";
  const auto again = write_tensors(file, tensors, IfTaken::keep);  // as if the file appeared after the check
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message, check_output(file, IfTaken::keep).error().message);
  EXPECT_THAT(again.error().message, HasSubstr("exists: --force replaces it"));
  EXPECT_EQ(std::filesystem::file_size(file), 5U);
  EXPECT_TRUE(check_output(file, IfTaken::replace));
  EXPECT_TRUE(write_tensors(file, tensors, IfTaken::replace));
  EXPECT_EQ(read_tensors(file)->at(0).name, "out");
  EXPECT_THAT(check_output(folder_.path(), IfTaken::replace).error().message, HasSubstr("is a folder"));
  const std::filesystem::directory_iterator entries(folder_.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "a partial file is left";
}

}  // namespace
}  // namespace headrace::cli
