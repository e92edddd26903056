// SPDX-License-Identifier: Apache-2.0
#include "formats/zip_directory.hpp"

#include "support/package_file.hpp"

#include <gmock/gmock.h>

#include <cstring>

namespace headrace::formats {
namespace {

using headrace::testing::zip_archive;
using ::testing::HasSubstr;

ZipDirectory::Reader reader_of(const std::string& file) {
  return [&file](std::uint64_t offset, std::span<std::byte> into) -> Result<void> {
    if (offset > file.size() || into.size() > file.size() - offset)
      return make_error(Code::corrupt, "read beyond the end");
    if (!into.empty()) std::memcpy(into.data(), file.data() + offset, into.size());
    return {};
  };
}

Result<ZipDirectory> read_directory(const std::string& file) {
  return ZipDirectory::read(file.size(), reader_of(file));
}

TEST(ZipDirectory, names_lengths_and_offsets_of_all_members_are_found) {
  const std::string file =
      zip_archive({{"net/a", "hello"}, {"net/b/c", ""}, {"net/d", std::string(1000, 'x')}});
  const auto directory = read_directory(file);
  ASSERT_TRUE(directory) << directory.error().message;
  ASSERT_EQ(directory->members.size(), 3U);
  EXPECT_EQ(directory->members[0].name, "net/a");
  EXPECT_EQ(directory->members[2].bytes, 1000U);
  const auto offset = directory->data_offset(directory->members[0], reader_of(file));
  ASSERT_TRUE(offset);
  EXPECT_EQ(file.substr(*offset, 5), "hello");
  EXPECT_EQ(directory->find("net/b/c")->bytes, 0U);
  EXPECT_EQ(directory->find("net/e"), nullptr);
}

TEST(ZipDirectory, a_comment_after_the_directory_is_skipped) {
  std::string file = zip_archive({{"a", "1"}});
  file[file.size() - 2] = 5;
  EXPECT_TRUE(read_directory(file + "hello"));
}

TEST(ZipDirectory, other_members_or_contents_have_another_hash) {
  const auto one = read_directory(zip_archive({{"a", "1"}})),
             same = read_directory(zip_archive({{"a", "1"}})),
             other = read_directory(zip_archive({{"a", "2"}}));
  EXPECT_EQ(one->hash, same->hash);
  EXPECT_NE(one->hash, other->hash);
}

TEST(ZipDirectory, a_text_file_is_no_package) {
  const auto read_text =
      read_directory("this is a text file, and not a package at all, whatever its name says");
  EXPECT_EQ(read_text.code(), Code::corrupt);
  EXPECT_THAT(read_text.error().message, HasSubstr("not a package"));
  EXPECT_EQ(read_directory("").code(), Code::corrupt);
  EXPECT_EQ(read_directory("PK").code(), Code::corrupt);
}

TEST(ZipDirectory, an_archive_cut_off_anywhere_is_corrupt) {
  const std::string file = zip_archive({{"net/a", "hello"}, {"net/b", "world"}});
  for (std::size_t bytes = 0; bytes < file.size(); ++bytes)
    EXPECT_EQ(read_directory(file.substr(0, bytes)).code(), Code::corrupt) << bytes;
  EXPECT_THAT(read_directory(file.substr(0, file.size() - 30)).error().message, HasSubstr("cut off"));
}

TEST(ZipDirectory, no_changed_byte_makes_a_member_reach_outside_the_file) {
  const std::string whole = zip_archive({{"net/a", "hello"}, {"net/b", "world"}});
  int found = 0;
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const char change : {'\x01', '\x80', '\xff'}) {
      std::string file = whole;
      file[at] = static_cast<char>(file[at] ^ change);
      const auto directory = read_directory(file);
      if (!directory) continue;
      for (const ZipMember& member : directory->members) {
        const auto offset = directory->data_offset(member, reader_of(file));
        if (!offset) continue;
        EXPECT_LE(*offset + member.bytes, file.size());
        ++found;
      }
    }
  EXPECT_GT(found, 0) << "no changed file was read";
}

TEST(ZipDirectory, a_name_that_leads_out_of_the_folder_is_refused) {
  for (const char* name : {"/etc/passwd", "../x", "a/../../x", "a\\b", ""})
    EXPECT_EQ(read_directory(zip_archive({{name, "x"}})).code(), Code::corrupt) << name;
  EXPECT_TRUE(read_directory(zip_archive({{"a..b/c", "x"}})));
}

TEST(ZipDirectory, a_refused_name_is_shown_without_its_control_characters) {
  const auto refusal = [](const std::string& name) {
    return read_directory(zip_archive({{name, "x"}})).error().message;
  };
  EXPECT_THAT(refusal("../x"), HasSubstr("the name \"../x\" of a member leads out of the folder"));
  EXPECT_THAT(refusal(std::string("a\0b", 3)), HasSubstr(R"("a\x00b" of a member has a control character)"));
  EXPECT_THAT(refusal("a\x1b[2J"), HasSubstr(R"("a\x1b[2J" of a member has a control character)"));
}

TEST(ZipDirectory, a_length_that_would_wrap_is_refused_with_its_values) {
  // The entry's length of 2^32 - 2 is without a 64-bit field; offset and length together exceed the file.
  std::string file = zip_archive({{"a", "hello"}});
  const std::size_t entry = file.find("PK\x01\x02");
  for (const std::size_t length : {entry + 20, entry + 24}) file.replace(length, 4, "\xfe\xff\xff\xff");
  EXPECT_THAT(read_directory(file).error().message, HasSubstr("its member a of 4294967294 bytes at 0"));
  // An end record whose directory begins at 2^32 - 2.
  file = zip_archive({{"a", "hello"}});
  file.replace(file.size() - 6, 4, "\xfe\xff\xff\xff");
  EXPECT_THAT(read_directory(file).error().message, HasSubstr("bytes at 4294967294 lie outside the file"));
}

TEST(ZipDirectory, two_members_of_one_name_are_refused) {
  EXPECT_THAT(read_directory(zip_archive({{"a", "1"}, {"a", "2"}})).error().message,
              HasSubstr("two members have one name"));
}

}  // namespace
}  // namespace headrace::formats
