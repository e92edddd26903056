// SPDX-License-Identifier: Apache-2.0
#include "runner/package_cache.hpp"

#include "runner/workplace.hpp"
#include "support/package_file.hpp"
#include "support/temporary_folder.hpp"

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace headrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::write_package;

std::string content(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class PackageCacheTest : public ::testing::Test {
 protected:
  std::set<std::string> entries() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(fs::path(folder_.path()) / "cache" / "packages"))
      names.insert(entry.path().filename());
    return names;
  }
  test::TemporaryFolder folder_;
  PackageCache cache_{fs::path(folder_.path()) / "cache"};
};

TEST_F(PackageCacheTest, a_package_is_unpacked_once_and_completely) {
  const auto package = Package::open(write_package(folder_.path())).value();
  const auto first = cache_.unpacked(package);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_TRUE(first->fresh);
  EXPECT_EQ(content(first->folder / "net/archive_format"), "pt2");
  EXPECT_EQ(content(first->folder / "net/data/aotinductor/model/abc.wrapper.so"),
            "no code: the fake loads none");
  const auto second = cache_.unpacked(package);
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->fresh);
  EXPECT_EQ(second->folder, first->folder);
  EXPECT_EQ(entries(), (std::set<std::string>{PackageCache::key(package)}));
}

TEST_F(PackageCacheTest, a_changed_package_has_another_key) {
  const auto before = Package::open(write_package(folder_.path())).value();
  testing::PackageText text;
  text.code = "no code: the fake loads nonE";
  const auto after = Package::open(write_package(folder_.path(), text, "other.pt2")).value();
  EXPECT_NE(PackageCache::key(before), PackageCache::key(after));
}

TEST_F(PackageCacheTest, concurrent_unpacks_get_one_complete_folder) {
  testing::PackageText text;
  text.code = std::string(3'000'000, 'x');
  const std::string path = write_package(folder_.path(), text);
  std::atomic<int> wrong = 0, fresh = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 6; ++i)
      threads.emplace_back([&] {
        const auto package = Package::open(path).value();
        const auto unpacked = cache_.unpacked(package);
        if (!unpacked ||
            fs::file_size(unpacked->folder / "net/data/aotinductor/model/abc.wrapper.so") != 3'000'000)
          ++wrong;
        else if (unpacked->fresh)
          ++fresh;
      });
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(fresh, 1);
  EXPECT_EQ(entries().size(), 1U);
}

TEST_F(PackageCacheTest, the_folder_of_a_killed_process_is_swept_and_that_of_a_living_one_is_kept) {
  const fs::path packages = fs::path(folder_.path()) / "cache" / "packages";
  const fs::path dead = packages / (std::string(32, 'a') + ".0123456789abcdef"),
                 living = packages / (std::string(32, 'b') + ".0123456789abcdef");
  fs::create_directories(living);
  const int held = ::open((living / "lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::mkdir(dead.c_str(), 0700);
    const int lock = ::open((dead / "lock").c_str(), O_CREAT | O_RDWR, 0600);
    ::flock(lock, LOCK_EX);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(fs::exists(dead));
  cache_.sweep();
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(living));
  ::close(held);
}

TEST_F(PackageCacheTest, a_sweep_leaves_all_that_does_not_bear_a_name_of_the_cache) {
  const fs::path packages = fs::path(folder_.path()) / "cache" / "packages";
  const std::vector<std::string> names{"backup.2024-01-01-00-00", "model.safetensors.json",
                                       std::string(31, 'a') + "-.0123456789abcdef",
                                       std::string(32, 'A') + ".0123456789abcdef"};
  for (const std::string& name : names) {
    fs::create_directories(packages / name);
    testing::write_file(packages / name / "lock", "");
  }
  cache_.sweep();
  EXPECT_EQ(entries(), std::set<std::string>(names.begin(), names.end()));
}

TEST_F(PackageCacheTest, the_cache_is_made_for_this_user_alone) {
  const auto package = Package::open(write_package(folder_.path())).value();
  const mode_t before = ::umask(0);
  const auto unpacked = cache_.unpacked(package);
  ::umask(before);
  ASSERT_TRUE(unpacked) << unpacked.error().message;
  constexpr auto others = fs::perms::group_all | fs::perms::others_all;
  for (const fs::path& path : {unpacked->folder, unpacked->folder.parent_path(),
                               unpacked->folder.parent_path().parent_path(), unpacked->folder / "net/data"})
    EXPECT_EQ(fs::status(path).permissions() & others, fs::perms::none) << path;
}

TEST_F(PackageCacheTest, a_cache_that_others_may_write_is_refused_with_what_to_do) {
  const auto package = Package::open(write_package(folder_.path())).value();
  const fs::path cache = fs::path(folder_.path()) / "cache", packages = cache / "packages";
  ASSERT_TRUE(cache_.unpacked(package));
  for (const fs::path& open : {packages, cache}) {
    fs::permissions(open, fs::perms::all);
    const auto refused = cache_.unpacked(package);
    ASSERT_FALSE(refused) << open;
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("other users may write to " + open.string()));
    fs::permissions(open, fs::perms::owner_all);
  }
  EXPECT_TRUE(cache_.unpacked(package));
}

TEST_F(PackageCacheTest, a_link_in_the_place_of_the_cache_is_not_followed) {
  const auto package = Package::open(write_package(folder_.path())).value();
  const fs::path cache = fs::path(folder_.path()) / "cache", elsewhere = fs::path(folder_.path()) / "other";
  fs::create_directories(cache);
  fs::create_directories(elsewhere);
  fs::create_directory_symlink(elsewhere, cache / "packages");
  const auto refused = cache_.unpacked(package);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("links are not followed"));
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(PackageCacheTest, an_entry_that_another_could_have_changed_is_unpacked_again) {
  const auto package = Package::open(write_package(folder_.path())).value();
  const std::string member = "net/data/aotinductor/model/abc.wrapper.so";
  const auto first = cache_.unpacked(package).value();
  const fs::path elsewhere = fs::path(folder_.path()) / "elsewhere";
  const auto is_unpacked_again = [&](const char* what) {
    const auto mended = cache_.unpacked(package);
    ASSERT_TRUE(mended) << what << ": " << mended.error().message;
    EXPECT_TRUE(mended->fresh) << what;
    EXPECT_FALSE(fs::is_symlink(first.folder)) << what;
    EXPECT_EQ(content(first.folder / member), "no code: the fake loads none") << what;
  };
  fs::permissions(first.folder / member, fs::perms::all);
  is_unpacked_again("a member that others may write");
  fs::permissions(first.folder / "net/data", fs::perms::all);
  is_unpacked_again("a folder that others may write");
  fs::rename(first.folder / member, elsewhere);
  fs::create_symlink(elsewhere, first.folder / member);
  is_unpacked_again("a link to a member");
  const fs::path whole = fs::path(folder_.path()) / "whole";
  fs::rename(first.folder, whole);
  fs::create_directory_symlink(whole, first.folder);
  is_unpacked_again("a link to the entry");
  EXPECT_TRUE(fs::exists(whole / member));
}

TEST_F(PackageCacheTest, openers_of_a_damaged_entry_all_find_a_whole_one) {
  const std::string path = write_package(folder_.path());
  const auto package = Package::open(path).value();
  const fs::path member = cache_.unpacked(package)->folder / "net/data/aotinductor/model/abc.wrapper.so";
  const std::uintmax_t bytes = fs::file_size(member);
  std::atomic<int> wrong = 0;
  for (int round = 0; round < 30; ++round) {
    fs::resize_file(member, 3);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 6; ++i)
      threads.emplace_back([&] {
        std::error_code none;
        const auto unpacked = cache_.unpacked(package);
        EXPECT_TRUE(unpacked) << unpacked.error().message;
        for (int look = 0; look < 20; ++look)
          if (!unpacked || fs::file_size(member, none) != bytes) ++wrong;
      });
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(PackageCacheTest, a_sweep_leaves_the_folder_of_one_that_begins) {
  const fs::path place = fs::path(folder_.path()) / std::string(32, 'a');
  std::atomic<bool> done = false;
  std::vector<std::jthread> sweepers;
  for (int i = 0; i < 3; ++i)
    sweepers.emplace_back([&] {
      while (!done) Workplace::sweep(folder_.path());
    });
  int lost = 0;
  for (int i = 0; i < 300; ++i) {
    const auto made = Workplace::make(place);
    if (!made || !fs::exists(made->folder() / "lock")) ++lost;
  }
  done = true;
  EXPECT_EQ(lost, 0);
}

TEST_F(PackageCacheTest, a_failed_unpack_leaves_nothing) {
  const std::string path = write_package(folder_.path());
  const auto package = Package::open(path).value();
  // The file shrinks after it was opened: its members are no longer at the offsets in the directory.
  fs::resize_file(path, 40);
  const auto unpacked = cache_.unpacked(package);
  ASSERT_FALSE(unpacked);
  EXPECT_EQ(unpacked.code(), Code::corrupt);
  EXPECT_TRUE(entries().empty());
}

TEST_F(PackageCacheTest, an_entry_that_lost_bytes_or_a_member_is_unpacked_again) {
  const auto package = Package::open(write_package(folder_.path())).value();
  const std::string member = "net/data/aotinductor/model/abc.wrapper.so";
  const auto first = cache_.unpacked(package);
  ASSERT_TRUE(first);
  fs::resize_file(first->folder / member, 3);
  const auto mended = cache_.unpacked(package);
  ASSERT_TRUE(mended) << mended.error().message;
  EXPECT_TRUE(mended->fresh);
  EXPECT_EQ(content(mended->folder / member), "no code: the fake loads none");
  fs::remove(mended->folder / member);
  EXPECT_TRUE(cache_.unpacked(package)->fresh);
  EXPECT_EQ(content(first->folder / member), "no code: the fake loads none");
}

TEST_F(PackageCacheTest, a_member_with_a_wrong_checksum_is_corrupt_and_leaves_nothing) {
  const std::string path = write_package(folder_.path());
  std::string bytes = content(path);
  bytes[bytes.find("no code: the fake")] = 'N';
  testing::write_file(path, bytes);
  const auto unpacked = cache_.unpacked(Package::open(path).value());
  ASSERT_FALSE(unpacked);
  EXPECT_EQ(unpacked.code(), Code::corrupt);
  EXPECT_THAT(unpacked.error().message, HasSubstr("abc.wrapper.so is wrong: copy it again"));
  EXPECT_TRUE(entries().empty());
}

TEST_F(PackageCacheTest, a_cache_folder_that_cannot_be_made_is_reported) {
  testing::write_file(folder_.path() + "/file", "in the way");
  const auto package = Package::open(write_package(folder_.path())).value();
  const auto unpacked = PackageCache(folder_.path() + "/file").unpacked(package);
  ASSERT_FALSE(unpacked);
  EXPECT_THAT(unpacked.error().message, HasSubstr("make the folder"));
}

TEST_F(PackageCacheTest, a_package_that_is_a_folder_is_used_in_place) {
  const auto package = Package::open(write_package(folder_.path())).value();
  const auto unpacked = cache_.unpacked(package).value();
  const auto again = cache_.unpacked(Package::open(unpacked.folder.string()).value()).value();
  EXPECT_EQ(again.folder, unpacked.folder);
  EXPECT_FALSE(again.fresh);
}

TEST(DefaultCacheFolder, a_given_cache_folder_is_used) {
  EXPECT_EQ(default_cache_folder("/somewhere"), "/somewhere");
}

}  // namespace
}  // namespace headrace
