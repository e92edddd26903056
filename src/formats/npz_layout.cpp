// SPDX-License-Identifier: Apache-2.0
#include "formats/npz_layout.hpp"

#include "base/errors.hpp"
#include "formats/names.hpp"
#include "formats/npy.hpp"
#include "formats/npz.hpp"
#include "formats/zip_records.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>

namespace headrace::formats {
namespace {

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
constexpr std::uint16_t no_time = 0,
                        first_day = (1 << 5) | 1;  // 1 January 1980, so that equal input gives equal files

std::uint32_t short_or_zip64(std::uint64_t number) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(number, zip::in_zip64));
}

/// The extra field with the numbers that need 64 bits; empty if none does. It must not hold small numbers:
/// minizip of Debian 12 looks for a directory's zip64 field only where a 64-bit number is all ones, and takes
/// the 32-bit mark for the length and the offset themselves.
std::string zip64_field(std::initializer_list<std::uint64_t> numbers) {
  Record large;
  for (const std::uint64_t number : numbers)
    if (number >= zip::in_zip64) large.put(number);
  if (large.text().empty()) return {};
  const auto length = static_cast<std::uint16_t>(large.text().size());
  return Record().put(zip::zip64_tag).put(length).put_text(large.text()).text();
}

std::string local_header(const std::string& name, std::uint64_t bytes, std::uint32_t sum) {
  const std::string extra = zip64_field({bytes, bytes});
  Record record;
  record.put(zip::local_mark)
      .put(extra.empty() ? version_plain : version_zip64)
      .put(zip::utf8_flag)
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
  record.put(zip::entry_mark)
      .put(version)
      .put(version)
      .put(zip::utf8_flag)
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
  if (members >= zip::count_in_zip64 || offset >= zip::in_zip64 || bytes >= zip::in_zip64) {
    record.put(zip::end64_mark)
        .put(std::uint64_t{zip::end64_bytes - 12})
        .put(version_zip64)
        .put(version_zip64)
        .put(std::uint32_t{0});
    record.put(std::uint32_t{0}).put(members).put(members).put(bytes).put(offset);
    record.put(zip::locator_mark).put(std::uint32_t{0}).put(offset + bytes).put(std::uint32_t{1});
  }
  const auto count = static_cast<std::uint16_t>(std::min<std::uint64_t>(members, zip::count_in_zip64));
  record.put(zip::end_mark).put(std::uint16_t{0}).put(std::uint16_t{0});
  record.put(count).put(count).put(short_or_zip64(bytes)).put(short_or_zip64(offset)).put(std::uint16_t{0});
  return record.text();
}

void put_at(std::span<std::byte> file, std::uint64_t offset, const std::string& text) {
  std::memcpy(file.subspan(offset, text.size()).data(), text.data(), text.size());
}

}  // namespace

Result<NpzLayout> NpzLayout::plan(std::span<const TensorInfo> tensors) {
  HEADRACE_TRY_VOID(check_tensors(tensors));
  NpzLayout layout;
  std::uint64_t at = 0, directory = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.type->npy.empty())
      return make_error(Code::invalid_argument,
                        "tensor \"{}\" is {}, which NumPy cannot hold: write a .safetensors", tensor.name,
                        tensor.type->name);
    if (tensor.name.size() + npz_suffix.size() > longest_npz_name)
      return make_error(Code::invalid_argument, "a tensor's name of {} bytes is too long for an archive",
                        tensor.name.size());
    if (!stays_in_folder(tensor.name))
      return make_error(
          Code::invalid_argument,
          "tensor \"{}\" cannot be in an archive: a program that unpacks it would write outside of "
          "its folder. Write a .safetensors",
          tensor.name);
    Member member{tensor.name + std::string(npz_suffix), write_npy(tensor), tensor.bytes, at};
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
    const auto whole = file.subspan(offsets_[i] - member.npy.size(), bytes);
    const auto sum =
        static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(whole.data()), whole.size()));
    put_at(file, member.header_offset, local_header(member.name, bytes, sum));
    directory += directory_entry(member.name, bytes, sum, member.header_offset);
  }
  put_at(file, directory_offset_,
         directory + directory_end(members_.size(), directory_offset_, directory.size()));
}

}  // namespace headrace::formats
