// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_file.hpp"

#include "base/errors.hpp"
#include "formats/safetensors.hpp"

#include <numeric>

namespace headrace::formats {

Result<FileFormat> format_of(const std::string& path) {
  if (path.ends_with(".safetensors")) return FileFormat::safetensors;
  if (path.ends_with(".npz")) return FileFormat::npz;
  return make_error(Code::invalid_argument,
                    "{}: the name must end in .safetensors or .npz, which tells the format", path);
}

Result<TensorFile> TensorFile::open(const std::string& path) {
  HEADRACE_TRY(format, format_of(path));
  HEADRACE_TRY(mapped, MappedFile::open(path));
  TensorFile file(std::move(mapped));
  const std::span<const std::byte> bytes = file.file_.bytes();
  if (format == FileFormat::safetensors) {
    auto header = read_safetensors(bytes, bytes.size());
    if (!header) return std::move(header).error().within(path);
    file.header_ = bytes.first(header->bytes);
    for (SafetensorsEntry& entry : header->tensors) {
      const auto part = bytes.subspan(entry.offset, entry.info.bytes);
      file.tensors_.push_back({std::move(entry.info), part});
    }
  } else {
    auto arrays = read_npz(bytes);
    if (!arrays) return std::move(arrays).error().within(path);
    file.arrays_ = std::move(*arrays);
    for (const NpzArray& array : file.arrays_) file.tensors_.push_back({array.info, array.bytes});
  }
  return file;
}

std::uint64_t TensorFile::bytes() const {
  return std::accumulate(tensors_.begin(), tensors_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Tensor& tensor) { return sum + tensor.info.bytes; });
}

}  // namespace headrace::formats
