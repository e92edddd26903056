// SPDX-License-Identifier: Apache-2.0
// Properties of the file store alone: publishers that die, and damaged files.
#include "metadata/file_store.hpp"

#include "tests/support/child_ending.hpp"
#include "tests/support/store_watcher.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
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

TEST_F(FileStoreTest, files_that_do_not_bear_a_name_of_the_store_are_left_alone) {
  { const auto made = open(); }
  const std::string entries = folder_.path() + "/entries/", publishers = folder_.path() + "/publishers/";
  const std::vector<std::string> others{
      entries + "a-report-with-a-long-name.2024-01-01-00-00-and-more.txt",
      entries + std::string(16, 'a') + "-" + std::string(16, 'b') + "." + std::string(15, 'c') + "~",
      publishers + "package.lock"};
  for (const std::string& path : others) std::ofstream(path) << "a user's";
  const auto store = open();
  EXPECT_TRUE(store->list(Deadline::never())->empty());
  for (const std::string& path : others) EXPECT_TRUE(std::filesystem::exists(path)) << path;
}

TEST_F(FileStoreTest, a_store_that_others_may_write_is_refused_with_what_to_do) {
  { const auto made = open(); }
  for (const char* const subfolder : {"/entries", "/publishers"}) {
    std::filesystem::permissions(folder_.path() + subfolder, std::filesystem::perms::all);
    const auto refused = FileStore::open({folder_.path(), 20ms}, logger_);
    ASSERT_FALSE(refused) << subfolder;
    EXPECT_THAT(refused.error().message, HasSubstr("other users may write to"));
    std::filesystem::permissions(folder_.path() + subfolder, std::filesystem::perms::owner_all);
  }
}

TEST_F(FileStoreTest, a_folder_that_was_removed_comes_back_with_the_next_entry) {
  const auto store = open(), other = open();
  ASSERT_TRUE(store->publish("a", "", "bytes", 10s, Deadline::never()));
  std::filesystem::remove_all(folder_.path());
  ASSERT_TRUE(store->publish("a", "", "again", 10s, Deadline::never()));
  EXPECT_EQ(*open()->fetch("a", "", Deadline::never()), "again");
  ASSERT_TRUE(other->publish("b", "", "too", 10s, Deadline::never()))
      << "its lock is gone, the folder is there";
  EXPECT_THAT(*open()->list(Deadline::never()), ::testing::UnorderedElementsAre("a", "b"));
  EXPECT_EQ(count_files("publishers"), 2U);
}

TEST_F(FileStoreTest, a_fifo_in_the_place_of_an_entry_keeps_nobody_waiting) {
  const auto store = open();
  ASSERT_TRUE(store->publish("a", "", "bytes", 10s, Deadline::never()));
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/entries")) {
    std::filesystem::remove(entry.path());
    ASSERT_EQ(::mkfifo(entry.path().c_str(), 0600), 0);
  }
  EXPECT_TRUE(store->list(Deadline::never())->empty());
  EXPECT_FALSE(store->fetch("a", "", Deadline::never()));
}

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
