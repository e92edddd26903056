// SPDX-License-Identifier: Apache-2.0
#include "formats/npy_file.hpp"

#include "base/errors.hpp"
#include "formats/npy.hpp"

#include <filesystem>

namespace headrace::formats {

Result<NpyFile> NpyFile::open(const std::string& path) {
  HEADRACE_TRY(file, MappedFile::open(path));
  auto header = read_npy(file.bytes());
  if (!header) return std::move(header).error().within(path);
  const auto elements = file.bytes().subspan(header->header_bytes);
  if (header->data_bytes > elements.size())
    return make_error(Code::corrupt, "{}: it ends before the end of its {} bytes of elements", path,
                      header->data_bytes);
  TensorInfo info{std::filesystem::path(path).stem().string(), header->type, std::move(header->shape),
                  header->data_bytes};
  return NpyFile(std::move(file), std::move(info), elements.first(header->data_bytes));
}

}  // namespace headrace::formats
