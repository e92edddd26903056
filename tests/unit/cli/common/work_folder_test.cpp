// SPDX-License-Identifier: Apache-2.0
#include "cli/common/work_folder.hpp"

#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

namespace headrace::cli {
namespace {

namespace fs = std::filesystem;

class WorkFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* const now = std::getenv("TMPDIR")) before_ = now;
    ::setenv("TMPDIR", parent_.c_str(), 1);
  }
  void TearDown() override {
    if (before_)
      ::setenv("TMPDIR", before_->c_str(), 1);
    else
      ::unsetenv("TMPDIR");
  }

  const test::TemporaryFolder folder_;
  const fs::path parent_ = folder_.path();

 private:
  std::optional<std::string> before_;
};

TEST_F(WorkFolderTest, AWorkFolderIsRemovedWithItsContents) {
  std::string path;
  {
    auto folder = WorkFolder::make();
    ASSERT_TRUE(folder.ok()) << folder.error().message;
    path = folder->path();
    std::ofstream(path + "/file") << "x";
    EXPECT_EQ(fs::path(path).parent_path(), parent_);
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(WorkFolderTest, ANewWorkFolderRemovesAbandonedOnesAndNothingElse) {
  auto living = WorkFolder::make();
  ASSERT_TRUE(living.ok());
  const fs::path left = parent_ / "headrace-work-0123456789abcdef", other = parent_ / "other";
  fs::create_directories(left / "agents");
  fs::create_directory(other);
  fs::permissions(left, fs::perms::owner_all);
  fs::create_directory_symlink(other, parent_ / "headrace-work-0123456789abcd00");
  for (const char* const name : {"headrace-work-results", "headrace-work-backup", "headrace-work-20240101"})
    fs::create_directory(parent_ / name);
  auto next = WorkFolder::make();
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(fs::exists(left));
  for (const char* const name : {"headrace-work-results", "headrace-work-backup", "headrace-work-20240101"})
    EXPECT_TRUE(fs::exists(parent_ / name)) << name;
  EXPECT_TRUE(fs::exists(living->path()) && fs::exists(next->path()) && fs::exists(other));
}

TEST_F(WorkFolderTest, AMissingTemporaryFolderIsNamed) {
  ::setenv("TMPDIR", (parent_ / "missing").c_str(), 1);
  auto folder = WorkFolder::make();
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(folder.error().message, testing::AllOf(testing::HasSubstr((parent_ / "missing").string()),
                                                     testing::HasSubstr("TMPDIR")));
}

}  // namespace
}  // namespace headrace::cli
