// SPDX-License-Identifier: Apache-2.0
#include "formats/npz.hpp"

#include "formats/npy.hpp"
#include "formats/tensor_file.hpp"
#include "support/temporary_folder.hpp"
#include "unit/formats/named_tensor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <minizip/zip.h>
#include <zlib.h>

#include <cstring>
#include <fstream>

namespace headrace::formats {
namespace {

using ::testing::HasSubstr;

Result<std::vector<NpzArray>> read_bytes(const std::string& archive) {
  return read_npz(std::as_bytes(std::span(archive)));
}

class Npz : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path() const { return folder_.path() + "/a.npz"; }

  void add(zipFile zip, const std::string& name, const std::string& bytes, bool deflated) {
    zip_fileinfo info{};
    ASSERT_EQ(::zipOpenNewFileInZip(zip, name.c_str(), &info, nullptr, 0, nullptr, 0, nullptr,
                                    deflated ? Z_DEFLATED : 0, 6),
              ZIP_OK);
    ASSERT_EQ(::zipWriteInFileInZip(zip, bytes.data(), static_cast<unsigned>(bytes.size())), ZIP_OK);
    ASSERT_EQ(::zipCloseFileInZip(zip), ZIP_OK);
  }

  std::string contents() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const test::TemporaryFolder folder_;
};

TEST_F(Npz, StoredAndDeflatedMembersAreRead) {
  const TensorInfo a = named_tensor("a", "U8", {3}), b = named_tensor("dir/b", "F32", {1000});
  const std::string b_bytes(4000, 'b');
  zipFile zip = ::zipOpen64(path().c_str(), APPEND_STATUS_CREATE);
  add(zip, "a.npy", write_npy(a) + "xyz", false);
  add(zip, "dir/b.npy", write_npy(b) + b_bytes, true);
  ::zipClose(zip, nullptr);
  const auto file = TensorFile::open(path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 2U);
  EXPECT_EQ(file->tensors()[0].info.name, "a");
  EXPECT_EQ(std::memcmp(file->tensors()[0].bytes.data(), "xyz", 3), 0);
  EXPECT_EQ(file->tensors()[1].info.name, "dir/b");
  EXPECT_EQ(std::memcmp(file->tensors()[1].bytes.data(), b_bytes.data(), b_bytes.size()), 0);
}

/// An archive of one member whose sizes and offset all stand in zip64 fields, as those of archives beyond 4
/// GiB do.
std::string zip64_archive(const std::string& name, const std::string& bytes) {
  std::string text;
  const auto put = [&text](auto value) { text.append(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto u16 = [&](std::size_t value) { put(static_cast<std::uint16_t>(value)); };
  const auto u32 = [&](std::size_t value) { put(static_cast<std::uint32_t>(value)); };
  constexpr std::size_t mark = 0xFFFFFFFF;
  const std::size_t sum = ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  u32(0x04034b50), u16(45), u16(0), u16(0), u32(0), u32(sum), u32(mark), u32(mark), u16(name.size()), u16(20);
  text += name;
  u16(1), u16(16), put(bytes.size()), put(bytes.size());
  text += bytes;
  const std::size_t directory = text.size();
  u32(0x02014b50), u16(45), u16(45), u16(0), u16(0), u32(0), u32(sum), u32(mark), u32(mark), u16(name.size());
  u16(28), u16(0), u16(0), u16(0), u32(0), u32(mark);
  text += name;
  u16(1), u16(24), put(bytes.size()), put(bytes.size()), put(std::uint64_t{0});
  const std::size_t length = text.size() - directory;
  u32(0x06054b50), u16(0), u16(0), u16(1), u16(1), u32(length), u32(directory), u16(0);
  return text;
}

TEST(NpzBytes, Zip64FieldsAreReadAndNoFlippedBitChangesTheElements) {
  const std::string elements(64, 'z');
  const std::string good = zip64_archive("a.npy", write_npy(named_tensor("a", "U8", {64})) + elements);
  ASSERT_TRUE(read_bytes(good).ok()) << read_bytes(good).error().message;
  std::size_t accepted = 0;
  for (std::size_t i = 0; i < 8 * good.size(); ++i) {
    std::string bad = good;
    bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << i % 8));
    const auto arrays = read_bytes(bad);
    if (!arrays.ok()) continue;
    ++accepted;
    ASSERT_EQ(arrays->size(), 1U) << i;
    const auto& bytes = arrays->at(0).bytes;
    ASSERT_EQ(bytes.size(), elements.size()) << i;
    ASSERT_EQ(std::memcmp(bytes.data(), elements.data(), elements.size()), 0) << i;
  }
  // The bits of the elements are under the checksum; those of a time stamp, for example, are not.
  EXPECT_LE(accepted, 8 * (good.size() - elements.size()));
  EXPECT_GT(accepted, 0U);
}

TEST_F(Npz, AMemberThatIsNoArrayIsRefusedWithItsName) {
  zipFile zip = ::zipOpen64(path().c_str(), APPEND_STATUS_CREATE);
  add(zip, "readme.txt", "hello", false);
  ::zipClose(zip, nullptr);
  EXPECT_THAT(TensorFile::open(path()).error().message, HasSubstr("readme.txt"));
}

TEST(NpzBytes, ANameWithAControlCharacterIsRefusedWithTheName) {
  for (const auto& [name, shown] :
       {std::pair(std::string("a\0b.npy", 7), R"("a\x00b.npy")"), {"a\x1b[2J.npy", R"("a\x1b[2J.npy")"}}) {
    const auto arrays = read_bytes(zip64_archive(name, write_npy(named_tensor("a", "U8", {0}))));
    ASSERT_FALSE(arrays.ok());
    EXPECT_EQ(arrays.code(), Code::corrupt);
    EXPECT_THAT(arrays.error().message, HasSubstr(shown));
  }
}

TEST_F(Npz, AMemberWithFewerElementsThanItsShapeIsRefused) {
  zipFile zip = ::zipOpen64(path().c_str(), APPEND_STATUS_CREATE);
  add(zip, "a.npy", write_npy(named_tensor("a", "U8", {3})) + "xy", false);
  ::zipClose(zip, nullptr);
  EXPECT_THAT(TensorFile::open(path()).error().message, HasSubstr("2 bytes of elements"));
}

TEST_F(Npz, EveryFileWithAChangedByteOrCutOffIsRefusedOrReadsTheSame) {
  const TensorInfo a = named_tensor("a", "U8", {64}), b = named_tensor("b", "U16", {40});
  const std::string a_bytes(64, 'a'), b_bytes(80, 'b');
  zipFile zip = ::zipOpen64(path().c_str(), APPEND_STATUS_CREATE);
  add(zip, "a.npy", write_npy(a) + a_bytes, false);
  add(zip, "b.npy", write_npy(b) + b_bytes, true);
  ::zipClose(zip, nullptr);
  const std::string good = contents();
  ASSERT_TRUE(read_bytes(good).ok());
  std::size_t refused = 0, accepted = 0;
  const auto look = [&](const std::string& archive) {
    const auto arrays = read_bytes(archive);
    if (!arrays.ok()) {
      ++refused;
      return;
    }
    // A file that is accepted (the changed byte is in a time stamp or a name) has the elements that were
    // written.
    ++accepted;
    ASSERT_EQ(arrays->size(), 2U);
    for (const auto& [array, want] : {std::pair(0U, &a_bytes), std::pair(1U, &b_bytes)}) {
      const auto& bytes = arrays->at(array).bytes;
      ASSERT_EQ(bytes.size(), want->size());
      ASSERT_EQ(std::memcmp(bytes.data(), want->data(), want->size()), 0);
    }
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x41);
    ASSERT_NO_FATAL_FAILURE(look(bad)) << i;
    ASSERT_NO_FATAL_FAILURE(look(good.substr(0, i))) << i;
  }
  EXPECT_GT(refused, good.size());
  EXPECT_GT(accepted, 0U);
}

}  // namespace
}  // namespace headrace::formats
