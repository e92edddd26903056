// SPDX-License-Identifier: Apache-2.0
#include "cli/common/output_file.hpp"

#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace headrace::cli {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

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

TEST_F(PartFile, APartFileIsForThisUserAloneUntilItIsWhole) {
  const mode_t before = ::umask(0);
  auto file = OutputFile::open(path_, 5, 1, true);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto mode = [](const fs::path& path) {
    return static_cast<unsigned>(fs::status(path).permissions());
  };
  EXPECT_EQ(mode(path_.string() + ".part"), 0600U);
  EXPECT_EQ(mode(path_.string() + ".part.state"), 0600U);
  ::umask(0022);
  ASSERT_TRUE(file->finish(false, IfTaken::keep).ok());
  ::umask(before);
  EXPECT_EQ(mode(path_), 0644U);
}

TEST_F(PartFile, APartFileThatAnotherCouldHaveMadeIsRefused) {
  const fs::path elsewhere = path_.string() + ".elsewhere";
  for (const char* const name : {".part", ".part.state"}) {
    const fs::path part = path_.string() + name;
    const auto refused = [&](const char* what) {
      const auto file = OutputFile::open(path_, 100, 7, true);
      EXPECT_EQ(file.code(), Code::invalid_argument) << part << " is " << what;
      fs::remove(part);
      fs::remove(elsewhere);
    };
    std::ofstream(part) << "x";
    fs::permissions(part, fs::perms(0666));
    refused("a file that others may write");
    std::ofstream(elsewhere) << "x";
    fs::create_hard_link(elsewhere, part);
    refused("a second name of a file");
    fs::create_symlink(elsewhere, part);
    refused("a link");
    ASSERT_EQ(::mkfifo(part.c_str(), 0600), 0);
    refused("a FIFO");
    EXPECT_TRUE(OutputFile::open(path_, 100, 7, true).ok());
    fs::remove(path_.string() + ".part");
    fs::remove(path_.string() + ".part.state");
  }
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
