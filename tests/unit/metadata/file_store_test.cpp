// SPDX-License-Identifier: Apache-2.0
// Properties of the file store alone: publishers that die, and damaged files.
#include "metadata/file_store.hpp"

#include "tests/support/child_ending.hpp"
#include "tests/support/store_watcher.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <csignal>
#include <fstream>

namespace headrace::metadata {
namespace {

using ::headrace::test::TemporaryFolder;
using ::headrace::testing::StoreWatcher;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class FileStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open() {
    auto store = FileStore::open({folder_.path(), 20ms}, logger_);
    if (!store) throw std::runtime_error(store.error().message);
    return std::move(store).value();
  }
  std::size_t count_files(const char* subfolder) const {
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/" + subfolder))
      files += entry.exists() ? 1 : 0;
    return files;
  }
  /// A process that publishes an entry and then sleeps. Returns after the entry is published.
  pid_t publisher(const std::string& name) {
    int pipe[2];
    if (::pipe(pipe) != 0) throw std::runtime_error("no pipe");
    const pid_t child = ::fork();
    if (child == 0) {
      auto store = FileStore::open({folder_.path(), 20ms}, logger_);
      const bool published = store.ok() && (*store)->publish(name, "", "bytes", 10s, Deadline::never()).ok();
      (void)!::write(pipe[1], published ? "y" : "n", 1);
      for (;;) ::pause();
    }
    ::close(pipe[1]);
    char answer = 0;
    EXPECT_EQ(::read(pipe[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    ::close(pipe[0]);
    return child;
  }

  TemporaryFolder folder_;
  Logger logger_;
};

TEST_F(FileStoreTest, AKilledPublisherIsReportedAsLeftAndItsFilesAreRemoved) {
  const pid_t child = publisher("victim");
  const auto store = open();
  StoreWatcher watcher(*store);
  EXPECT_TRUE(watcher.joined("victim"));
  EXPECT_EQ(*store->fetch("victim", "", Deadline::never()), "bytes");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(watcher.left("victim"));
  EXPECT_EQ(store->fetch("victim", "", Deadline::never()).code(), Code::not_found);
  EXPECT_EQ(count_files("entries"), 0U);
  EXPECT_EQ(count_files("publishers"), 1U);  // ours
}

TEST_F(FileStoreTest, AStoreThatPublishedNothingLeavesNoFiles) {
  open();
  EXPECT_EQ(count_files("publishers"), 0U);
  const auto keeper = open();
  const pid_t child = publisher("victim");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  open();
  EXPECT_EQ(count_files("publishers"), 1U);
}

TEST_F(FileStoreTest, AForkedChildRemovesNoEntry) {
  auto store = open();
  ASSERT_TRUE(store->publish("agent", "", "bytes", 10s, Deadline::never()).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    store.reset();
    ::_exit(0);
  }
  EXPECT_TRUE(test::ends_well(child));
  EXPECT_EQ(*open()->fetch("agent", "", Deadline::never()), "bytes");
}

TEST_F(FileStoreTest, ADamagedEntryIsCorruptAndDoesNotHideTheOthers) {
  const auto store = open();
  ASSERT_TRUE(store->publish("whole", "", "bytes", 10s, Deadline::never()).ok());
  ASSERT_TRUE(store->publish("damaged", "", "bytes", 10s, Deadline::never()).ok());
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/entries")) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    std::string content(std::istreambuf_iterator<char>(file), {});
    if (content.find("damaged") == std::string::npos) continue;
    file.seekp(-1, std::ios::end);
    file << 'X';
  }
  const auto bytes = store->fetch("damaged", "", Deadline::never());
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.code(), Code::corrupt);
  EXPECT_THAT(bytes.error().message, HasSubstr("checksum"));
  EXPECT_EQ(*store->fetch("whole", "", Deadline::never()), "bytes");
}

TEST_F(FileStoreTest, EveryTruncationOfAnEntryIsCorrupt) {
  const auto store = open();
  ASSERT_TRUE(store->publish("agent", "label", "bytes", 10s, Deadline::never()).ok());
  const std::filesystem::path path = std::filesystem::directory_iterator(folder_.path() + "/entries")->path();
  for (std::uintmax_t size = std::filesystem::file_size(path); size-- > 0;) {
    std::filesystem::resize_file(path, size);
    EXPECT_EQ(store->fetch("agent", "label", Deadline::never()).code(), Code::corrupt) << size;
  }
  // An entry without its name is not listed.
  EXPECT_TRUE(store->list(Deadline::never())->empty());
}

TEST_F(FileStoreTest, AFolderThatCannotBeMadeIsNamed) {
  const auto store = FileStore::open({folder_.path() + "/no/such", 20ms}, logger_);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.code(), Code::invalid_argument);
  EXPECT_THAT(store.error().message, HasSubstr("/no/such"));
}

}  // namespace
}  // namespace headrace::metadata
