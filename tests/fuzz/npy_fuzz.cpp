// SPDX-License-Identifier: Apache-2.0
// The header of an .npy file: the reader must end on any bytes, and what it accepts can be written and read
// again.
#include "formats/npy.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace formats = headrace::formats;
  const auto header = formats::read_npy(std::as_bytes(std::span(data, size)));
  if (!header) {
    if (header.error().message.empty()) std::abort();
    return 0;
  }
  if (header->header_bytes > size) std::abort();
  const std::string written = formats::write_npy({"x", header->type, header->shape, header->data_bytes});
  const auto again = formats::read_npy(std::as_bytes(std::span(written)));
  if (!again || again->type != header->type || again->shape != header->shape ||
      again->data_bytes != header->data_bytes || again->header_bytes != written.size())
    std::abort();
  return 0;
}
