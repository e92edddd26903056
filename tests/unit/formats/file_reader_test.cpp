// SPDX-License-Identifier: Apache-2.0
#include "formats/file_reader.hpp"

#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>

#include <sys/stat.h>

namespace headrace::formats {
namespace {

using ::testing::HasSubstr;

TEST(FileReader, a_file_that_is_not_regular_is_refused_without_waiting_for_a_writer) {
  const test::TemporaryFolder folder;
  const std::string fifo = folder.path() + "/fifo.pt2";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, folder.path(), std::string("/dev/null")}) {
    const auto file = FileReader::open(path);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.code(), Code::invalid_argument);
    EXPECT_THAT(file.error().message, HasSubstr(path + " is not a regular file"));
  }
}

}  // namespace
}  // namespace headrace::formats
