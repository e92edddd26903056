// SPDX-License-Identifier: Apache-2.0
#include "cli/npz.hpp"

#include "cli/errors.hpp"
#include "cli/npy.hpp"

#include <minizip/unzip.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

namespace headrace::cli {
namespace {

constexpr std::string_view suffix = ".npy";
constexpr std::size_t longest_name = 4096;
constexpr std::uint64_t most_inflation = 1032;  // deflate's best ratio: a member that claims more is corrupt
constexpr std::uint32_t local_header_mark = 0x04034b50;
constexpr std::uint16_t utf8_flag = 1 << 11, encrypted_flag = 1 << 0;

std::uint32_t crc(std::span<const std::byte> bytes, std::uint32_t so_far = 0) {
  return static_cast<std::uint32_t>(
      ::crc32_z(so_far, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// --- reading

struct CloseArchive {
  void operator()(void* archive) const { ::unzClose(archive); }
};
using Archive = std::unique_ptr<void, CloseArchive>;

struct MemberInfo {
  std::string name;
  unz_file_info64 zip{};
  std::optional<std::uint64_t> header_offset;  // from the directory's zip64 field, if that has it
};

constexpr std::uint16_t zip64_tag = 1;
constexpr std::size_t most_extra = 0xFFFF;

template <class Number>
Number number_at(std::span<const std::byte> bytes, std::size_t at) {
  Number value = 0;
  std::memcpy(&value, bytes.subspan(at, sizeof value).data(), sizeof value);
  return value;
}

/// The zip64 field among a directory entry's extra fields; empty if there is none.
std::span<const std::byte> find_zip64(std::span<const std::byte> extra) {
  while (extra.size() >= 4) {
    const std::size_t length = number_at<std::uint16_t>(extra, 2);
    if (length > extra.size() - 4) return {};
    if (number_at<std::uint16_t>(extra, 0) == zip64_tag) return extra.subspan(4, length);
    extra = extra.subspan(4 + length);
  }
  return {};
}

/// Reads the zip64 field ourselves: minizip of Debian 12 takes the 32-bit marks for the numbers themselves.
/// For an uncompressed member the field holds both lengths, or the offset, or all three.
void take_zip64(MemberInfo& member, std::span<const std::byte> field) {
  if (member.zip.compression_method != 0) return;
  if (field.size() >= 16) {
    member.zip.uncompressed_size = number_at<std::uint64_t>(field, 0);
    member.zip.compressed_size = number_at<std::uint64_t>(field, 8);
    field = field.subspan(16);
  }
  if (field.size() >= 8) member.header_offset = number_at<std::uint64_t>(field, 0);
}

Result<MemberInfo> current_member(const Archive& archive) {
  MemberInfo member;
  std::array<char, longest_name + 1> name{};
  if (::unzGetCurrentFileInfo64(archive.get(), &member.zip, name.data(), longest_name, nullptr, 0, nullptr,
                                0) != UNZ_OK)
    return fail(Code::corrupt, "npz: the directory of the archive is damaged");
  if (member.zip.size_filename > longest_name)
    return fail(Code::corrupt, "npz: a member's name has {} bytes", member.zip.size_filename);
  member.name.assign(name.data(), member.zip.size_filename);
  std::vector<std::byte> extra(std::min<std::size_t>(member.zip.size_file_extra, most_extra));
  if (::unzGetCurrentFileInfo64(archive.get(), nullptr, nullptr, 0, extra.data(), extra.size(), nullptr, 0) !=
      UNZ_OK)
    return fail(Code::corrupt, "npz: the directory of the archive is damaged");
  take_zip64(member, find_zip64(extra));
  return member;
}

/// The offset of the first byte after the local header at `at`; nullopt if there is no such header.
std::optional<std::uint64_t> after_local_header(std::span<const std::byte> file, std::uint64_t at) {
  constexpr std::size_t fixed = 30, name_length = 26, extra_length = 28;
  if (at > file.size() || file.size() - at < fixed) return std::nullopt;
  const auto header = file.subspan(at, fixed);
  if (number_at<std::uint32_t>(header, 0) != local_header_mark) return std::nullopt;
  return at + fixed + number_at<std::uint16_t>(header, name_length) +
         number_at<std::uint16_t>(header, extra_length);
}

/// The offset at which a member's bytes begin. Without a zip64 offset it opens the member in minizip.
std::optional<std::uint64_t> begin_of(const Archive& archive, const MemberInfo& member,
                                      std::span<const std::byte> file) {
  if (member.header_offset) return after_local_header(file, *member.header_offset);
  if (::unzOpenCurrentFile(archive.get()) != UNZ_OK) return std::nullopt;
  return ::unzGetCurrentFileZStreamPos64(archive.get());
}

/// The member's bytes: a range of `file` if uncompressed, else inflated into `inflated`.
Result<std::span<const std::byte>> member_bytes(const Archive& archive, const MemberInfo& member,
                                                std::span<const std::byte> file,
                                                std::vector<std::byte>& inflated) {
  const auto corrupt = [&](const char* what) {
    return fail(Code::corrupt, "npz: member {}: {}", member.name, what);
  };
  const unz_file_info64& zip = member.zip;
  if ((zip.flag & encrypted_flag) != 0)
    return fail(Code::not_supported, "npz: member {} is encrypted", member.name);
  if (zip.compression_method != 0 && zip.compression_method != Z_DEFLATED)
    return fail(Code::not_supported,
                "npz: member {} has compression method {}; only stored and deflated members are supported",
                member.name, zip.compression_method);
  const auto begin = begin_of(archive, member, file);
  if (!begin) return corrupt("its header does not agree with the archive's directory");
  const std::uint64_t offset = *begin;
  if (offset > file.size() || zip.compressed_size > file.size() - offset)
    return corrupt("it ends after the end of the file");
  if (zip.compression_method == 0) {
    if (zip.compressed_size != zip.uncompressed_size)
      return corrupt("it is not compressed, but has two different lengths");
    const auto bytes = file.subspan(offset, zip.uncompressed_size);
    ::unzCloseCurrentFile(archive.get());
    if (crc(bytes) != zip.crc) return corrupt("its checksum is wrong");
    return bytes;
  }
  if (zip.uncompressed_size / most_inflation > zip.compressed_size + 1)
    return corrupt("it claims to inflate to more bytes than deflate allows");
  inflated.resize(zip.uncompressed_size);
  for (std::size_t have = 0; have < inflated.size();) {
    const auto part = static_cast<unsigned>(std::min<std::size_t>(inflated.size() - have, 1U << 30));
    const int got = ::unzReadCurrentFile(archive.get(), inflated.data() + have, part);
    if (got <= 0) return corrupt("it cannot be inflated");
    have += static_cast<std::size_t>(got);
  }
  if (::unzCloseCurrentFile(archive.get()) != UNZ_OK) return corrupt("its checksum is wrong");
  return std::span<const std::byte>(inflated);
}

// --- writing

/// Appends little-endian numbers.
class Record {
 public:
  template <class Number>
  Record& put(Number value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Record& put_text(std::string_view text) {
    text_ += text;
    return *this;
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

constexpr std::uint16_t version_plain = 20, version_zip64 = 45;
constexpr std::uint32_t in_zip64 = 0xFFFFFFFF;  // mark: the number is in the zip64 field
constexpr std::uint16_t count_in_zip64 = 0xFFFF;
constexpr std::uint16_t no_time = 0,
                        first_day = (1 << 5) | 1;  // 1 January 1980, so that equal input gives equal files

std::uint32_t short_or_zip64(std::uint64_t number) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(number, in_zip64));
}

/// The extra field with the numbers that need 64 bits; empty if none does. It must not hold small numbers:
/// minizip of Debian 12 looks for a directory's zip64 field only where a 64-bit number is all ones, and takes
/// the 32-bit mark for the length and the offset themselves.
std::string zip64_field(std::initializer_list<std::uint64_t> numbers) {
  Record large;
  for (const std::uint64_t number : numbers)
    if (number >= in_zip64) large.put(number);
  if (large.text().empty()) return {};
  const auto length = static_cast<std::uint16_t>(large.text().size());
  return Record().put(zip64_tag).put(length).put_text(large.text()).text();
}

std::string local_header(const std::string& name, std::uint64_t bytes, std::uint32_t sum) {
  const std::string extra = zip64_field({bytes, bytes});
  Record record;
  record.put(local_header_mark)
      .put(extra.empty() ? version_plain : version_zip64)
      .put(utf8_flag)
      .put(std::uint16_t{0})
      .put(no_time)
      .put(first_day)
      .put(sum);
  record.put(short_or_zip64(bytes))
      .put(short_or_zip64(bytes))
      .put(static_cast<std::uint16_t>(name.size()))
      .put(static_cast<std::uint16_t>(extra.size()))
      .put_text(name)
      .put_text(extra);
  return record.text();
}

std::string directory_entry(const std::string& name, std::uint64_t bytes, std::uint32_t sum,
                            std::uint64_t header_offset) {
  const std::string extra = zip64_field({bytes, bytes, header_offset});
  const std::uint16_t version = extra.empty() ? version_plain : version_zip64;
  Record record;
  record.put(std::uint32_t{0x02014b50})
      .put(version)
      .put(version)
      .put(utf8_flag)
      .put(std::uint16_t{0})
      .put(no_time);
  record.put(first_day)
      .put(sum)
      .put(short_or_zip64(bytes))
      .put(short_or_zip64(bytes))
      .put(static_cast<std::uint16_t>(name.size()))
      .put(static_cast<std::uint16_t>(extra.size()));
  record.put(std::uint16_t{0})
      .put(std::uint16_t{0})
      .put(std::uint16_t{0})
      .put(std::uint32_t{0})
      .put(short_or_zip64(header_offset))
      .put_text(name)
      .put_text(extra);
  return record.text();
}

/// The end record of the directory, which readers look for first. If a number needs 64 bits, the zip64 end
/// record comes before it.
std::string directory_end(std::uint64_t members, std::uint64_t offset, std::uint64_t bytes) {
  Record record;
  if (members >= count_in_zip64 || offset >= in_zip64 || bytes >= in_zip64) {
    record.put(std::uint32_t{0x06064b50})
        .put(std::uint64_t{44})
        .put(version_zip64)
        .put(version_zip64)
        .put(std::uint32_t{0});
    record.put(std::uint32_t{0}).put(members).put(members).put(bytes).put(offset);
    record.put(std::uint32_t{0x07064b50}).put(std::uint32_t{0}).put(offset + bytes).put(std::uint32_t{1});
  }
  const auto count = static_cast<std::uint16_t>(std::min<std::uint64_t>(members, count_in_zip64));
  record.put(std::uint32_t{0x06054b50}).put(std::uint16_t{0}).put(std::uint16_t{0});
  record.put(count).put(count).put(short_or_zip64(bytes)).put(short_or_zip64(offset)).put(std::uint16_t{0});
  return record.text();
}

void put_at(std::span<std::byte> file, std::uint64_t offset, const std::string& text) {
  std::memcpy(file.subspan(offset, text.size()).data(), text.data(), text.size());
}

}  // namespace

Result<std::vector<NpzArray>> read_npz(const std::string& path, std::span<const std::byte> file) {
  const Archive archive(::unzOpen64(path.c_str()));
  if (!archive) return fail(Code::corrupt, "npz: {} is not a zip archive, or its directory is damaged", path);
  std::vector<NpzArray> arrays;
  std::set<std::string> names;
  for (int step = ::unzGoToFirstFile(archive.get()); step != UNZ_END_OF_LIST_OF_FILE;
       step = ::unzGoToNextFile(archive.get())) {
    if (step != UNZ_OK)
      return fail(Code::corrupt, "npz: the directory of the archive is damaged after {} members",
                  arrays.size());
    HEADRACE_CLI_TRY(member, current_member(archive));
    if (!member.name.ends_with(suffix))
      return fail(Code::not_supported, "npz: member {} is not an array: its name does not end in {}",
                  member.name, suffix);
    NpzArray array;
    HEADRACE_CLI_TRY(bytes, member_bytes(archive, member, file, array.inflated));
    auto header = read_npy(bytes);
    if (!header) return std::move(header).error().within(fmt::format("npz: member {}", member.name));
    if (header->data_bytes != bytes.size() - header->header_bytes)
      return fail(Code::corrupt, "npz: member {} has {} bytes of elements, and its shape needs {}",
                  member.name, bytes.size() - header->header_bytes, header->data_bytes);
    array.info = {member.name.substr(0, member.name.size() - suffix.size()), header->type, header->shape,
                  header->data_bytes};
    if (!names.insert(array.info.name).second)
      return fail(Code::corrupt, "npz: two members have the name {}", member.name);
    array.bytes = bytes.subspan(header->header_bytes);
    arrays.push_back(std::move(array));
  }
  return arrays;
}

Result<NpzLayout> NpzLayout::plan(std::span<const TensorInfo> tensors) {
  NpzLayout layout;
  std::uint64_t at = 0, directory = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.type->npy.empty())
      return fail(Code::invalid_argument,
                  "tensor \"{}\" is {}, which NumPy cannot hold: write a .safetensors", tensor.name,
                  tensor.type->name);
    if (tensor.name.size() + suffix.size() > longest_name)
      return fail(Code::invalid_argument, "a tensor's name of {} bytes is too long for an archive",
                  tensor.name.size());
    Member member{tensor.name + std::string(suffix), write_npy(tensor), tensor.bytes, at};
    const std::uint64_t bytes = member.npy.size() + member.data_bytes;
    at += local_header(member.name, bytes, 0).size() + member.npy.size();
    layout.offsets_.push_back(at);
    at += tensor.bytes;
    directory += directory_entry(member.name, bytes, 0, member.header_offset).size();
    layout.members_.push_back(std::move(member));
  }
  layout.directory_offset_ = at;
  layout.file_bytes_ = at + directory + directory_end(tensors.size(), at, directory).size();
  return layout;
}

void NpzLayout::finish(std::span<std::byte> file) const {
  std::string directory;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    put_at(file, offsets_[i] - member.npy.size(), member.npy);
    const std::uint64_t bytes = member.npy.size() + member.data_bytes;
    const std::uint32_t sum = crc(file.subspan(offsets_[i] - member.npy.size(), bytes));
    put_at(file, member.header_offset, local_header(member.name, bytes, sum));
    directory += directory_entry(member.name, bytes, sum, member.header_offset);
  }
  put_at(file, directory_offset_,
         directory + directory_end(members_.size(), directory_offset_, directory.size()));
}

}  // namespace headrace::cli
