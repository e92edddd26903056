// SPDX-License-Identifier: Apache-2.0
// An .npz archive: an array's bytes are as many as its shape needs, and what the reader accepts can be
// written and read again, but for names that lead out of a folder: nothing is unpacked here.
#include "formats/names.hpp"
#include "formats/npz.hpp"
#include "formats/npz_layout.hpp"

#include <algorithm>
#include <cstdlib>

namespace {

bool same(const headrace::formats::NpzArray& a, const headrace::formats::NpzArray& b) {
  return a.info.name == b.info.name && a.info.type == b.info.type && a.info.shape == b.info.shape &&
         std::ranges::equal(a.bytes, b.bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace formats = headrace::formats;
  const auto arrays = formats::read_npz(std::as_bytes(std::span(data, size)));
  if (!arrays) {
    if (arrays.error().message.empty()) std::abort();
    return 0;
  }
  std::vector<formats::TensorInfo> infos;
  bool has_good_names = true;
  for (const formats::NpzArray& array : *arrays) {
    if (array.bytes.size() != array.info.bytes) std::abort();
    infos.push_back(array.info);
    has_good_names = has_good_names && formats::stays_in_folder(array.info.name);
  }
  const auto layout = formats::NpzLayout::plan(infos);
  if (layout.ok() != has_good_names) std::abort();
  if (!layout) return 0;
  std::vector<std::byte> file(layout->file_bytes());
  for (std::size_t i = 0; i < arrays->size(); ++i)
    std::ranges::copy(arrays->at(i).bytes, file.begin() + static_cast<std::ptrdiff_t>(layout->offsets()[i]));
  layout->finish(file);
  const auto again = formats::read_npz(file);
  if (!again || !std::ranges::equal(*again, *arrays, same)) std::abort();
  return 0;
}
