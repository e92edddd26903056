// SPDX-License-Identifier: Apache-2.0
#include "formats/npz.hpp"

#include "base/errors.hpp"
#include "formats/names.hpp"
#include "formats/npy.hpp"
#include "formats/zip_records.hpp"

#include <minizip/unzip.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>

namespace headrace::formats {
namespace {

using zip::number_at;

constexpr std::uint64_t most_inflation = 1032;  // deflate's best ratio: a member that claims more is corrupt
constexpr std::size_t most_extra = 0xFFFF;
constexpr std::size_t most_inflated_at_once = std::size_t{1} << 30;

/// The bytes that minizip reads, and its position in them.
struct Input {
  std::span<const std::byte> file;
  std::uint64_t at = 0;

  uLong read(void* into, uLong count) {
    const auto got = static_cast<uLong>(std::min<std::uint64_t>(count, file.size() - at));
    if (got > 0) std::memcpy(into, file.data() + at, got);
    at += got;
    return got;
  }
  /// Returns 0, or -1 for a position outside the file.
  long seek(std::uint64_t offset, int origin) {
    const std::uint64_t base = origin == ZLIB_FILEFUNC_SEEK_CUR   ? at
                               : origin == ZLIB_FILEFUNC_SEEK_END ? file.size()
                                                                  : 0;
    const std::uint64_t position = base + offset;  // minizip goes back by an offset that wraps
    if (position > file.size()) return -1;
    at = position;
    return 0;
  }
};

Input& input_of(voidpf opaque) { return *static_cast<Input*>(opaque); }

zlib_filefunc64_def functions_on(Input& input) {
  zlib_filefunc64_def functions{};
  functions.opaque = &input;
  functions.zopen64_file = [](voidpf opaque, const void*, int) { return opaque; };
  functions.zread_file = [](voidpf opaque, voidpf, void* into, uLong count) {
    return input_of(opaque).read(into, count);
  };
  functions.zwrite_file = [](voidpf, voidpf, const void*, uLong) { return uLong{0}; };
  functions.ztell64_file = [](voidpf opaque, voidpf) { return ZPOS64_T{input_of(opaque).at}; };
  functions.zseek64_file = [](voidpf opaque, voidpf, ZPOS64_T offset, int origin) {
    return input_of(opaque).seek(offset, origin);
  };
  functions.zclose_file = [](voidpf, voidpf) { return 0; };
  functions.zerror_file = [](voidpf, voidpf) { return 0; };
  return functions;
}

/// An archive that is open in minizip.
class Archive {
 public:
  explicit Archive(std::span<const std::byte> file) : input_{file} {
    zlib_filefunc64_def functions = functions_on(input_);
    handle_ = ::unzOpen2_64("", &functions);
  }
  ~Archive() {
    if (handle_ != nullptr) ::unzClose(handle_);
  }
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  [[nodiscard]] bool is_open() const { return handle_ != nullptr; }
  [[nodiscard]] unzFile handle() const { return handle_; }
  [[nodiscard]] std::span<const std::byte> file() const { return input_.file; }

 private:
  Input input_;
  unzFile handle_ = nullptr;
};

struct MemberInfo {
  std::string name;
  unz_file_info64 zip{};
  std::optional<std::uint64_t> header_offset;  // from the directory's zip64 field, if that has it

  [[nodiscard]] bool is_stored() const { return zip.compression_method == zip::stored; }
};

Error corrupt_member(const MemberInfo& member, std::string_view what) {
  return make_error(Code::corrupt, "npz: member {}: {}", member.name, what);
}

/// Reads the zip64 field ourselves: minizip of Debian 12 takes the 32-bit marks for the numbers themselves.
/// For an uncompressed member the field holds both lengths, or the offset, or all three.
void take_zip64(MemberInfo& member, std::span<const std::byte> field) {
  if (!member.is_stored()) return;
  if (field.size() >= 16) {
    member.zip.uncompressed_size = number_at<std::uint64_t>(field, 0);
    member.zip.compressed_size = number_at<std::uint64_t>(field, 8);
    field = field.subspan(16);
  }
  if (field.size() >= 8) member.header_offset = number_at<std::uint64_t>(field, 0);
}

Result<MemberInfo> current_member(const Archive& archive) {
  const auto damaged = [] {
    return make_error(Code::corrupt, "npz: the directory of the archive is damaged");
  };
  MemberInfo member;
  std::array<char, longest_npz_name + 1> name{};
  if (::unzGetCurrentFileInfo64(archive.handle(), &member.zip, name.data(), longest_npz_name, nullptr, 0,
                                nullptr, 0) != UNZ_OK)
    return damaged();
  if (member.zip.size_filename > longest_npz_name)
    return make_error(Code::corrupt, "npz: a member's name has {} bytes; the limit is {}",
                      member.zip.size_filename, longest_npz_name);
  member.name.assign(name.data(), member.zip.size_filename);
  if (has_control_character(member.name))
    return make_error(Code::corrupt, "npz: the name {} of a member has a control character",
                      name_text(member.name));
  std::vector<std::byte> extra(std::min<std::size_t>(member.zip.size_file_extra, most_extra));
  if (::unzGetCurrentFileInfo64(archive.handle(), nullptr, nullptr, 0, extra.data(), extra.size(), nullptr,
                                0) != UNZ_OK)
    return damaged();
  if (const auto field = zip::find_zip64(extra)) take_zip64(member, *field);
  return member;
}

/// The offset of the first byte after the local header at `at`; nullopt if there is no such header.
std::optional<std::uint64_t> after_local_header(std::span<const std::byte> file, std::uint64_t at) {
  constexpr std::size_t name_length = 26, extra_length = 28;
  if (at > file.size() || file.size() - at < zip::local_bytes) return std::nullopt;
  const auto header = file.subspan(at, zip::local_bytes);
  if (number_at<std::uint32_t>(header, 0) != zip::local_mark) return std::nullopt;
  return at + zip::local_bytes + number_at<std::uint16_t>(header, name_length) +
         number_at<std::uint16_t>(header, extra_length);
}

/// The offset at which a member's bytes begin. Without a zip64 offset it opens the member in minizip.
std::optional<std::uint64_t> begin_of(const Archive& archive, const MemberInfo& member) {
  if (member.header_offset) return after_local_header(archive.file(), *member.header_offset);
  if (::unzOpenCurrentFile(archive.handle()) != UNZ_OK) return std::nullopt;
  return ::unzGetCurrentFileZStreamPos64(archive.handle());
}

Result<std::span<const std::byte>> stored_bytes(const Archive& archive, const MemberInfo& member,
                                                std::uint64_t begin) {
  if (member.zip.compressed_size != member.zip.uncompressed_size)
    return corrupt_member(member, "it is not compressed, but has two different lengths");
  const auto bytes = archive.file().subspan(begin, member.zip.uncompressed_size);
  ::unzCloseCurrentFile(archive.handle());
  if (::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) != member.zip.crc)
    return corrupt_member(member, "its checksum is wrong");
  return bytes;
}

/// Inflates the member that is open in minizip.
Result<std::span<const std::byte>> inflated_bytes(const Archive& archive, const MemberInfo& member,
                                                  std::vector<std::byte>& inflated) {
  if (member.zip.uncompressed_size / most_inflation > member.zip.compressed_size + 1)
    return corrupt_member(member, "it claims to inflate to more bytes than deflate allows");
  inflated.resize(member.zip.uncompressed_size);
  for (std::size_t have = 0; have < inflated.size();) {
    const auto part = static_cast<unsigned>(std::min(inflated.size() - have, most_inflated_at_once));
    const int got = ::unzReadCurrentFile(archive.handle(), inflated.data() + have, part);
    if (got <= 0) return corrupt_member(member, "it cannot be inflated");
    have += static_cast<std::size_t>(got);
  }
  if (::unzCloseCurrentFile(archive.handle()) != UNZ_OK)
    return corrupt_member(member, "its checksum is wrong");
  return std::span<const std::byte>(inflated);
}

/// The member's bytes: a range of the file if uncompressed, else inflated into `inflated`.
Result<std::span<const std::byte>> member_bytes(const Archive& archive, const MemberInfo& member,
                                                std::vector<std::byte>& inflated) {
  if ((member.zip.flag & zip::encrypted_flag) != 0)
    return make_error(Code::not_supported, "npz: member {} is encrypted", member.name);
  if (!member.is_stored() && member.zip.compression_method != Z_DEFLATED)
    return make_error(
        Code::not_supported,
        "npz: member {} has compression method {}; only stored and deflated members are supported",
        member.name, member.zip.compression_method);
  const auto begin = begin_of(archive, member);
  if (!begin) return corrupt_member(member, "its header does not agree with the archive's directory");
  if (*begin > archive.file().size() || member.zip.compressed_size > archive.file().size() - *begin)
    return corrupt_member(member, "it ends after the end of the file");
  return member.is_stored() ? stored_bytes(archive, member, *begin)
                            : inflated_bytes(archive, member, inflated);
}

Result<NpzArray> read_array(const Archive& archive) {
  HEADRACE_TRY(member, current_member(archive));
  if (!member.name.ends_with(npz_suffix))
    return make_error(Code::not_supported, "npz: member {} is not an array: its name does not end in {}",
                      member.name, npz_suffix);
  NpzArray array;
  HEADRACE_TRY(bytes, member_bytes(archive, member, array.inflated));
  auto header = read_npy(bytes);
  if (!header) return std::move(header).error().within(fmt::format("npz: member {}", member.name));
  array.bytes = bytes.subspan(header->header_bytes);
  if (header->data_bytes != array.bytes.size())
    return make_error(Code::corrupt, "npz: member {} has {} bytes of elements, and its shape needs {}",
                      member.name, array.bytes.size(), header->data_bytes);
  array.info = {member.name.substr(0, member.name.size() - npz_suffix.size()), header->type,
                std::move(header->shape), header->data_bytes};
  return array;
}

}  // namespace

Result<std::vector<NpzArray>> read_npz(std::span<const std::byte> file) {
  const Archive archive(file);
  if (!archive.is_open())
    return make_error(Code::corrupt, "npz: it is not a zip archive, or its directory is damaged");
  std::vector<NpzArray> arrays;
  std::set<std::string> names;
  for (int step = ::unzGoToFirstFile(archive.handle()); step != UNZ_END_OF_LIST_OF_FILE;
       step = ::unzGoToNextFile(archive.handle())) {
    if (step != UNZ_OK)
      return make_error(Code::corrupt, "npz: the directory of the archive is damaged after {} members",
                        arrays.size());
    HEADRACE_TRY(array, read_array(archive));
    if (!names.insert(array.info.name).second)
      return make_error(Code::corrupt, "npz: two members have the name {}{}", array.info.name, npz_suffix);
    arrays.push_back(std::move(array));
  }
  return arrays;
}

}  // namespace headrace::formats
