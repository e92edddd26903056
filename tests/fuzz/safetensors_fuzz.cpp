// SPDX-License-Identifier: Apache-2.0
// A safetensors file: no tensor may reach beyond the file, and what the reader accepts can be written and
// read again.
#include "formats/safetensors.hpp"

#include <algorithm>
#include <cstdlib>

namespace {

bool same(const headrace::formats::SafetensorsEntry& a, const headrace::formats::SafetensorsEntry& b) {
  return a.info.name == b.info.name && a.info.type == b.info.type && a.info.shape == b.info.shape &&
         a.info.bytes == b.info.bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace formats = headrace::formats;
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  static_cast<void>(formats::safetensors_metadata(file));
  const auto header = formats::read_safetensors(file, size);
  if (!header) {
    if (header.error().message.empty()) std::abort();
    return 0;
  }
  std::vector<formats::TensorInfo> infos;
  std::uint64_t data_bytes = 0;
  for (const formats::SafetensorsEntry& entry : header->tensors) {
    if (entry.offset > size || entry.info.bytes > size - entry.offset) std::abort();
    infos.push_back(entry.info);
    data_bytes += entry.info.bytes;
  }
  const auto written = formats::write_safetensors(infos, header->metadata);
  if (!written) std::abort();
  const auto again =
      formats::read_safetensors(std::as_bytes(std::span(*written)), written->size() + data_bytes);
  if (!again || again->metadata != header->metadata ||
      !std::ranges::equal(again->tensors, header->tensors, same))
    std::abort();
  return 0;
}
