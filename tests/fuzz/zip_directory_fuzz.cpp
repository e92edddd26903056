// SPDX-License-Identifier: Apache-2.0
// The reader of a package's directory must end on any bytes, and no member may reach beyond the file.
#include "formats/zip_directory.hpp"

#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto reader = [&](std::uint64_t offset, std::span<std::byte> into) -> headrace::Result<void> {
    if (offset > size || into.size() > size - offset)
      std::abort();  // the reader knows the length of the file
    if (!into.empty()) std::memcpy(into.data(), data + offset, into.size());
    return {};
  };
  const auto directory = headrace::formats::ZipDirectory::read(size, reader);
  if (!directory) return 0;
  for (const headrace::formats::ZipMember& member : directory->members) {
    const auto offset = directory->data_offset(member, reader);
    if (offset && (*offset > size || member.bytes > size - *offset)) std::abort();
    if (member.name.empty() || member.name.front() == '/') std::abort();
  }
  return 0;
}
