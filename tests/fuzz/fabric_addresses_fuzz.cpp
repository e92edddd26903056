// SPDX-License-Identifier: Apache-2.0
// What a peer of a fabric passes on: its address, as bytes and as text, and descriptors of its memory. The
// first byte chooses.
#include "fabric/address.hpp"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace {

using namespace headrace;

template <class Read>
void require_sentence(const Read& refused) {
  if (refused.error().message.empty()) std::abort();
}

void read_address(std::string_view bytes) {
  const auto read = fabric::read_address(bytes);
  if (!read) return require_sentence(read);
  for (const fabric::NicList& group : (*read)->groups)
    if (fabric::name_of(group).empty()) std::abort();
  const auto again = fabric::make_address((*read)->fabric, (*read)->groups);
  if (again->bytes != bytes) std::abort();
}

/// What has a short form may come as a long one: the parts are the same when they are written and read again.
void read_descriptor(std::string_view bytes) {
  const auto read = fabric::read_descriptor(bytes);
  if (!read) return require_sentence(read);
  const fabric::DescriptorParts& parts = **read;
  if (parts.bytes != bytes || parts.access == FabricAccess::local || fabric::name_of(parts.owner).empty())
    std::abort();
  const auto written = fabric::make_descriptor(parts.access, parts.length_bytes, parts.owner, parts.keys);
  const auto again = fabric::read_descriptor(written->bytes);
  if (!again || (*again)->owner != parts.owner || (*again)->keys != parts.keys ||
      (*again)->length_bytes != parts.length_bytes || (*again)->access != parts.access)
    std::abort();
  const auto shown = FabricDescriptor::from_bytes(bytes);
  if (!shown || shown->to_text().empty()) std::abort();
}

void read_text(std::string_view text) {
  const auto read = FabricAddress::from_text(text);
  if (!read) return require_sentence(read);
  if (read->to_text() != text) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) read_address(bytes);
  if (data[0] % 3 == 1) read_descriptor(bytes);
  if (data[0] % 3 == 2) read_text(bytes);
  return 0;
}
