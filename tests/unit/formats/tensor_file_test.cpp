// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_file.hpp"

#include "formats/safetensors.hpp"
#include "support/temporary_folder.hpp"
#include "unit/formats/named_tensor.hpp"

#include <gmock/gmock.h>

#include <sys/stat.h>

#include <fstream>

namespace headrace::formats {
namespace {

using ::testing::HasSubstr;

class TensorFileTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  [[nodiscard]] std::string refusal(const std::string& name) const {
    const auto file = TensorFile::open(path(name));
    EXPECT_FALSE(file.ok());
    return file.ok() ? "" : file.error().message;
  }

  const test::TemporaryFolder folder_;
};

TEST_F(TensorFileTest, ASafetensorsFileGivesItsTensorsAndItsHeaderByteForByte) {
  const std::vector tensors{named_tensor("a", "U8", {3}), named_tensor("b", "U16", {2})};
  const std::string header = write_safetensors(tensors, {{"format", "pt"}}).value();
  std::ofstream(path("x.safetensors"), std::ios::binary) << header << "abcwxyz";
  const auto file = TensorFile::open(path("x.safetensors"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->header().data()), file->header().size()), header);
  EXPECT_EQ(file->bytes(), 7U);
  ASSERT_EQ(file->tensors().size(), 2U);
  EXPECT_EQ(file->tensors()[1].info.name, "b");
  EXPECT_EQ(file->tensors()[1].bytes[0], std::byte{'w'});
}

TEST_F(TensorFileTest, ADamagedFileIsRefusedWithItsName) {
  for (const char* const name : {"x.safetensors", "x.npz"}) {
    std::ofstream(path(name)) << "no tensors at all";
    EXPECT_THAT(refusal(name), HasSubstr(path(name)));
    EXPECT_EQ(TensorFile::open(path(name)).code(), Code::corrupt);
  }
}

TEST_F(TensorFileTest, AFileOfAnotherFormatOrNoFormatIsRefused) {
  EXPECT_THAT(refusal("x.bin"), HasSubstr("must end in .safetensors or .npz"));
  EXPECT_EQ(TensorFile::open(path("none.npz")).code(), Code::not_found);
  std::ofstream(path("empty.npz")).flush();
  EXPECT_THAT(refusal("empty.npz"), HasSubstr("is empty"));
}

TEST_F(TensorFileTest, AFifoIsRefusedWithoutWaitingForAWriter) {
  ASSERT_EQ(::mkfifo(path("x.npz").c_str(), 0600), 0);
  EXPECT_THAT(refusal("x.npz"), HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace headrace::formats
