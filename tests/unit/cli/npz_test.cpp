// SPDX-License-Identifier: Apache-2.0
#include "cli/npz.hpp"

#include "cli/npy.hpp"
#include "cli/tensor_file.hpp"
#include "support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <minizip/zip.h>
#include <zlib.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace headrace::cli {
namespace {

using testing::HasSubstr;

TensorInfo npz_tensor(const char* name, const char* type, std::vector<std::uint64_t> shape) {
  TensorInfo info{name, element_type(type), std::move(shape), 0};
  info.bytes = tensor_bytes(*info.type, info.shape).value();
  return info;
}

std::string npy_of(const std::string& dictionary) {
  std::string text = dictionary + "\n";
  const auto length = static_cast<std::uint16_t>(text.size());
  return std::string("\x93NUMPY\x01\x00", 8) + std::string(reinterpret_cast<const char*>(&length), 2) + text;
}

Result<NpyHeader> read(const std::string& file) { return read_npy(std::as_bytes(std::span(file))); }

TEST(Npy, AWrittenHeaderIsReadBackAndEndsAligned) {
  for (const auto& info :
       {npz_tensor("a", "F32", {2, 3}), npz_tensor("b", "I8", {5}), npz_tensor("c", "F64", {}),
        npz_tensor("d", "U16", {0, 4}), npz_tensor("e", "C128", {1, 1, 1})}) {
    const std::string header = write_npy(info);
    const auto back = read(header);
    ASSERT_TRUE(back.ok()) << info.name << ": " << back.error().message;
    EXPECT_EQ(back->header_bytes, header.size());
    EXPECT_EQ(header.size() % 64, 0U);
    EXPECT_EQ(back->type, info.type);
    EXPECT_EQ(back->shape, info.shape);
    EXPECT_EQ(back->data_bytes, info.bytes);
  }
}

TEST(Npy, AnArrayThatCannotBeMovedIsRefusedWithAdvice) {
  EXPECT_THAT(read(npy_of("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }")).error().message,
              HasSubstr("ascontiguousarray"));
  EXPECT_THAT(read(npy_of("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }")).error().message,
              HasSubstr("big-endian"));
  EXPECT_THAT(read(npy_of("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }")).error().message,
              HasSubstr("Python objects"));
  EXPECT_THAT(
      read(npy_of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }")).error().message,
      HasSubstr("structures"));
  EXPECT_THAT(read(npy_of("{'descr': '<U9', 'fortran_order': False, 'shape': (2,), }")).error().message,
              HasSubstr("<U9"));
}

TEST(Npy, AnImpossibleShapeHasAnotherErrorThanADamagedHeader) {
  std::string ones;
  for (int i = 0; i < 65; ++i) ones += "1, ";
  const auto of_shape = [](const std::string& shape) {
    return read(npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }"));
  };
  EXPECT_TRUE(of_shape(ones.substr(3)).ok());
  EXPECT_EQ(of_shape(ones).code(), Code::not_supported);
  EXPECT_THAT(of_shape(ones).error().message, HasSubstr("more than 64 dimensions, which is the limit"));
  EXPECT_THAT(of_shape("100000000000000000000,").error().message, HasSubstr("a length of more than 64 bits"));
  EXPECT_THAT(of_shape("-2,").error().message, HasSubstr("not a tuple of lengths"));
}

TEST(Npy, AnArrayOfOneDimensionMayHaveFortranOrder) {
  EXPECT_TRUE(read(npy_of("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }")).ok());
}

TEST(Npy, DamagedHeadersAreRefused) {
  for (const std::string& file :
       {std::string(), std::string("\x93NUMPY"), std::string("PK plainly not"), npy_of("{"),
        npy_of("{'descr' '<f4'}"), npy_of("{'descr': '<f4', 'fortran_order': False}"),
        npy_of("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}"),
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}"),
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (2"),
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}"),
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296)}"),
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}"),
        std::string("\x93NUMPY\x01\x00\xff\xff{", 11)}) {
    const auto header = read(file);
    ASSERT_FALSE(header.ok()) << file;
    EXPECT_EQ(header.code(), Code::corrupt) << file;
  }
}

class Npz : public testing::Test {
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
  void replace(const std::string& bytes) {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }

  const test::TemporaryFolder folder_;
};

TEST_F(Npz, StoredAndDeflatedMembersAreRead) {
  const TensorInfo a = npz_tensor("a", "U8", {3}), b = npz_tensor("dir/b", "F32", {1000});
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

TEST_F(Npz, AnArchiveWrittenByTheLayoutIsReadBack) {
  const std::vector<TensorInfo> tensors{npz_tensor("one", "F16", {2, 2}), npz_tensor("none", "I32", {0}),
                                        npz_tensor("two", "BOOL", {5})};
  const auto layout = NpzLayout::plan(tensors);
  ASSERT_TRUE(layout.ok());
  std::vector<std::byte> bytes(layout->file_bytes());
  for (std::size_t t = 0; t < tensors.size(); ++t)
    for (std::uint64_t i = 0; i < tensors[t].bytes; ++i)
      bytes[layout->offsets()[t] + i] = static_cast<std::byte>(16 * t + i);
  layout->finish(bytes);
  replace({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const auto file = TensorFile::open(path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 3U);
  EXPECT_EQ(file->tensors()[2].info.name, "two");
  EXPECT_EQ(file->tensors()[2].bytes[4], static_cast<std::byte>(36));
  EXPECT_EQ(file->tensors()[1].info.bytes, 0U);
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

TEST_F(Npz, Zip64FieldsAreReadAndNoFlippedBitChangesTheElements) {
  const std::string elements(64, 'z');
  const std::string good = zip64_archive("a.npy", write_npy(npz_tensor("a", "U8", {64})) + elements);
  replace(good);
  ASSERT_TRUE(TensorFile::open(path()).ok()) << TensorFile::open(path()).error().message;
  std::size_t accepted = 0;
  for (std::size_t i = 0; i < 8 * good.size(); ++i) {
    std::string bad = good;
    bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << i % 8));
    replace(bad);
    const auto file = TensorFile::open(path());
    if (!file.ok()) continue;
    ++accepted;
    ASSERT_EQ(file->tensors().size(), 1U) << i;
    const auto& bytes = file->tensors()[0].bytes;
    ASSERT_EQ(bytes.size(), elements.size()) << i;
    ASSERT_EQ(std::memcmp(bytes.data(), elements.data(), elements.size()), 0) << i;
  }
  // The bits of the elements are under the checksum; those of a time stamp, for example, are not.
  EXPECT_LE(accepted, 8 * (good.size() - elements.size()));
  EXPECT_GT(accepted, 0U);
}

TEST_F(Npz, ATypeThatNumpyLacksIsRefused) {
  const auto layout = NpzLayout::plan(std::vector{npz_tensor("w", "BF16", {1})});
  ASSERT_FALSE(layout.ok());
  EXPECT_THAT(layout.error().message, HasSubstr(".safetensors"));
}

TEST_F(Npz, AMemberThatIsNoArrayIsRefusedWithItsName) {
  zipFile zip = ::zipOpen64(path().c_str(), APPEND_STATUS_CREATE);
  add(zip, "readme.txt", "hello", false);
  ::zipClose(zip, nullptr);
  EXPECT_THAT(TensorFile::open(path()).error().message, HasSubstr("readme.txt"));
}

TEST_F(Npz, AMemberWithFewerElementsThanItsShapeIsRefused) {
  zipFile zip = ::zipOpen64(path().c_str(), APPEND_STATUS_CREATE);
  add(zip, "a.npy", write_npy(npz_tensor("a", "U8", {3})) + "xy", false);
  ::zipClose(zip, nullptr);
  EXPECT_THAT(TensorFile::open(path()).error().message, HasSubstr("2 bytes of elements"));
}

TEST_F(Npz, EveryFileWithAChangedByteOrCutOffIsRefusedOrReadsTheSame) {
  const TensorInfo a = npz_tensor("a", "U8", {64}), b = npz_tensor("b", "U16", {40});
  const std::string a_bytes(64, 'a'), b_bytes(80, 'b');
  zipFile zip = ::zipOpen64(path().c_str(), APPEND_STATUS_CREATE);
  add(zip, "a.npy", write_npy(a) + a_bytes, false);
  add(zip, "b.npy", write_npy(b) + b_bytes, true);
  ::zipClose(zip, nullptr);
  const std::string good = contents();
  ASSERT_TRUE(TensorFile::open(path()).ok());
  std::size_t refused = 0, accepted = 0;
  const auto look = [&] {
    const auto file = TensorFile::open(path());
    if (!file.ok()) {
      ++refused;
      return;
    }
    // A file that is accepted (the changed byte is in a time stamp or a name) has the elements that were
    // written.
    ++accepted;
    ASSERT_EQ(file->tensors().size(), 2U);
    for (const auto& [tensor, want] : {std::pair(0, &a_bytes), std::pair(1, &b_bytes)}) {
      const auto& bytes = file->tensors()[static_cast<std::size_t>(tensor)].bytes;
      ASSERT_EQ(bytes.size(), want->size());
      ASSERT_EQ(std::memcmp(bytes.data(), want->data(), want->size()), 0);
    }
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x41);
    replace(bad);
    ASSERT_NO_FATAL_FAILURE(look()) << i;
    replace(good.substr(0, i));
    ASSERT_NO_FATAL_FAILURE(look()) << i;
  }
  EXPECT_GT(refused, good.size());
  EXPECT_GT(accepted, 0U);
}

}  // namespace
}  // namespace headrace::cli
