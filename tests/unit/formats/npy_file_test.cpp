// SPDX-License-Identifier: Apache-2.0
#include "formats/npy_file.hpp"

#include "formats/npy.hpp"
#include "support/temporary_folder.hpp"
#include "unit/formats/named_tensor.hpp"

#include <gmock/gmock.h>

#include <fstream>

namespace headrace::formats {
namespace {

using ::testing::HasSubstr;

class NpyFileTest : public ::testing::Test {
 protected:
  Result<NpyFile> open(const std::string& elements) const {
    std::ofstream(path_, std::ios::binary) << write_npy(named_tensor("w", "U16", {3})) << elements;
    return NpyFile::open(path_);
  }

  const test::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/layer.0.npy";
};

TEST_F(NpyFileTest, TheTensorHasTheFilesNameAndItsElements) {
  const auto file = open("aabbcc");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->info().name, "layer.0");
  EXPECT_EQ(file->info().shape, (std::vector<std::uint64_t>{3}));
  ASSERT_EQ(file->bytes().size(), 6U);
  EXPECT_EQ(file->bytes()[4], std::byte{'c'});
}

TEST_F(NpyFileTest, AFileThatEndsEarlyIsRefusedWithItsName) {
  const auto file = open("aabbc");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.code(), Code::corrupt);
  EXPECT_THAT(file.error().message, HasSubstr(path_));
  EXPECT_THAT(file.error().message, HasSubstr("6 bytes of elements"));
}

TEST_F(NpyFileTest, AFileThatIsMissingIsNotFound) {
  EXPECT_EQ(NpyFile::open(folder_.path() + "/none.npy").code(), Code::not_found);
}

}  // namespace
}  // namespace headrace::formats
