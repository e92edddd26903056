// SPDX-License-Identifier: Apache-2.0
#include "formats/zip_directory.hpp"

#include "base/hash.hpp"
#include "formats/names.hpp"
#include "formats/zip_records.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

namespace headrace::formats {
namespace {

using zip::number_at;

constexpr std::size_t most_comment = 0xFFFF;
constexpr std::uint64_t most_directory = std::uint64_t{64} << 20, most_members = 100'000;

template <class... Args>
Error damaged(fmt::format_string<Args...> what, Args&&... args) {
  return make_error(Code::corrupt, "its table of contents is damaged: {}",
                    fmt::format(what, std::forward<Args>(args)...));
}

struct End {
  std::uint64_t members = 0, bytes = 0, offset = 0;
};

/// The 64-bit form of the record, which comes before `end_offset` if a number does not fit.
Result<std::optional<End>> read_end64(std::uint64_t end_offset, const ZipDirectory::Reader& reader) {
  if (end_offset < zip::locator_bytes) return std::optional<End>();
  std::array<std::byte, zip::locator_bytes> locator;
  HEADRACE_TRY_VOID(reader(end_offset - zip::locator_bytes, locator));
  if (number_at<std::uint32_t>(locator, 0) != zip::locator_mark) return std::optional<End>();
  const auto at = number_at<std::uint64_t>(locator, 8);
  if (at > end_offset || end_offset - at < zip::end64_bytes)
    return damaged("its 64-bit end at {} does not end before {}", at, end_offset);
  std::array<std::byte, zip::end64_bytes> record;
  HEADRACE_TRY_VOID(reader(at, record));
  if (number_at<std::uint32_t>(record, 0) != zip::end64_mark)
    return damaged("its 64-bit end is not at {}, where it should be", at);
  return std::optional(End{number_at<std::uint64_t>(record, 32), number_at<std::uint64_t>(record, 40),
                           number_at<std::uint64_t>(record, 48)});
}

/// Searches the record of the file's end in the last `most` bytes.
Result<std::optional<End>> find_end_within(std::uint64_t most, std::uint64_t file_bytes,
                                           const ZipDirectory::Reader& reader) {
  const auto tail_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(file_bytes, most));
  std::vector<std::byte> tail(tail_bytes);
  HEADRACE_TRY_VOID(reader(file_bytes - tail_bytes, tail));
  for (std::size_t at = tail_bytes < zip::end_bytes ? 0 : tail_bytes - zip::end_bytes + 1; at-- > 0;) {
    if (number_at<std::uint32_t>(tail, at) != zip::end_mark) continue;
    if (at + zip::end_bytes + number_at<std::uint16_t>(tail, at + 20) != tail_bytes) continue;
    const End end{number_at<std::uint16_t>(tail, at + 10), number_at<std::uint32_t>(tail, at + 12),
                  number_at<std::uint32_t>(tail, at + 16)};
    HEADRACE_TRY(larger, read_end64(file_bytes - tail_bytes + at, reader));
    return std::optional(larger.value_or(end));
  }
  return std::optional<End>();
}

/// A comment may follow the record. Packages have none, so the first search finds it.
Result<End> find_end(std::uint64_t file_bytes, const ZipDirectory::Reader& reader) {
  for (const std::uint64_t most : {zip::end_bytes, zip::end_bytes + most_comment}) {
    HEADRACE_TRY(end, find_end_within(most, file_bytes, reader));
    if (end) return *end;
  }
  std::array<std::byte, 4> begin{};
  if (file_bytes >= begin.size()) HEADRACE_TRY_VOID(reader(0, begin));
  if (number_at<std::uint32_t>(begin, 0) == zip::local_mark)
    return make_error(Code::corrupt, "it begins as a package and has no end: it was cut off, copy it again");
  return make_error(Code::corrupt, "it is not a package: packages are zip archives that torch wrote (.pt2)");
}

/// Takes numbers that do not fit from the entry's zip64 field: lengths first, then the offset.
Result<void> take_zip64(std::span<const std::byte> extra, ZipMember& member, std::uint64_t& packed) {
  auto field = zip::find_zip64(extra);
  if (!field) return {};
  for (std::uint64_t* number : {&member.bytes, &packed, &member.header_offset}) {
    if (*number != zip::in_zip64) continue;
    if (field->size() < 8) return damaged("a 64-bit number of member {} is missing", name_text(member.name));
    *number = number_at<std::uint64_t>(*field, 0);
    field = field->subspan(8);
  }
  return {};
}

/// Reads one entry and moves `rest` to the position after it.
Result<ZipMember> read_entry(std::span<const std::byte>& rest, std::uint64_t directory_offset) {
  if (rest.size() < zip::entry_bytes || number_at<std::uint32_t>(rest, 0) != zip::entry_mark)
    return damaged("an entry is missing in its last {} bytes", rest.size());
  const auto flags = number_at<std::uint16_t>(rest, 8);
  const auto method = number_at<std::uint16_t>(rest, 10);
  ZipMember member;
  member.crc = number_at<std::uint32_t>(rest, 16);
  std::uint64_t packed = number_at<std::uint32_t>(rest, 20);
  member.bytes = number_at<std::uint32_t>(rest, 24);
  member.header_offset = number_at<std::uint32_t>(rest, 42);
  const std::size_t name_bytes = number_at<std::uint16_t>(rest, 28);
  const std::size_t extra_bytes = number_at<std::uint16_t>(rest, 30);
  const std::size_t whole = zip::entry_bytes + name_bytes + extra_bytes + number_at<std::uint16_t>(rest, 32);
  if (whole > rest.size()) return damaged("an entry of {} bytes is cut off after {}", whole, rest.size());
  member.name.assign(reinterpret_cast<const char*>(rest.data()) + zip::entry_bytes, name_bytes);
  if (has_control_character(member.name))
    return damaged("the name {} of a member has a control character", name_text(member.name));
  if (!stays_in_folder(member.name))
    return damaged("the name {} of a member leads out of the folder", name_text(member.name));
  HEADRACE_TRY_VOID(take_zip64(rest.subspan(zip::entry_bytes + name_bytes, extra_bytes), member, packed));
  rest = rest.subspan(whole);
  if ((flags & zip::encrypted_flag) != 0)
    return make_error(Code::not_supported, "its member {} is encrypted", member.name);
  if (method != zip::stored)
    return make_error(
        Code::not_supported,
        "its member {} is compressed, and torch reads only stored members: pack it again with `zip -0`",
        member.name);
  if (packed != member.bytes)
    return damaged("its stored member {} has two lengths, {} and {}", member.name, packed, member.bytes);
  if (member.header_offset > directory_offset || member.bytes > directory_offset - member.header_offset)
    return damaged("its member {} of {} bytes at {} does not end before {}", member.name, member.bytes,
                   member.header_offset, directory_offset);
  return member;
}

}  // namespace

Result<ZipDirectory> ZipDirectory::read(std::uint64_t file_bytes, const Reader& reader) {
  HEADRACE_TRY(end, find_end(file_bytes, reader));
  if (end.offset > file_bytes || end.bytes > file_bytes - end.offset)
    return damaged("{} bytes at {} lie outside the file of {}", end.bytes, end.offset, file_bytes);
  if (end.bytes > most_directory || end.members > most_members || end.members * zip::entry_bytes > end.bytes)
    return damaged("{} members in {} bytes are more than it can have", end.members, end.bytes);
  std::vector<std::byte> bytes(static_cast<std::size_t>(end.bytes));
  HEADRACE_TRY_VOID(reader(end.offset, bytes));
  ZipDirectory directory{file_bytes, hash64(bytes), {}};
  std::span<const std::byte> rest = bytes;
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < end.members; ++i) {
    HEADRACE_TRY(member, read_entry(rest, end.offset));
    if (!names.insert(member.name).second) return damaged("two members have one name, {}", member.name);
    directory.members.push_back(std::move(member));
  }
  return directory;
}

const ZipMember* ZipDirectory::find(std::string_view name) const {
  const auto found = std::ranges::find(members, name, &ZipMember::name);
  return found == members.end() ? nullptr : &*found;
}

Result<std::uint64_t> ZipDirectory::data_offset(const ZipMember& member, const Reader& reader) const {
  std::array<std::byte, zip::local_bytes> header;
  const auto outside = [&] {
    return damaged("its member {} of {} bytes at {} lies outside the file of {}", member.name, member.bytes,
                   member.header_offset, file_bytes);
  };
  if (file_bytes - member.header_offset < zip::local_bytes) return outside();
  HEADRACE_TRY_VOID(reader(member.header_offset, header));
  if (number_at<std::uint32_t>(header, 0) != zip::local_mark)
    return make_error(Code::corrupt, "its member {} is not where its table of contents says", member.name);
  const std::uint64_t offset = member.header_offset + zip::local_bytes +
                               number_at<std::uint16_t>(header, 26) + number_at<std::uint16_t>(header, 28);
  if (offset > file_bytes || member.bytes > file_bytes - offset) return outside();
  return offset;
}

}  // namespace headrace::formats
