// SPDX-License-Identifier: Apache-2.0
// The reader of metadata. An odd input is read as it is; the rest of an even one is a body that gets the
// right envelope, so that the checksum does not stop the fuzzer. Accepted metadata must be encoded and
// decoded to the same metadata.
#include "tests/support/sealed_metadata.hpp"
#include "wire/metadata.hpp"

#include <cstdlib>
#include <string_view>

using namespace headrace;

namespace {

void read(std::string_view bytes) {
  const auto metadata = wire::decode(bytes);
  if (!metadata.ok()) {
    if (metadata.error().message.empty()) std::abort();
    return;
  }
  const auto again = wire::encode(*metadata);
  if (!again.ok()) std::abort();
  const auto back = wire::decode(*again);
  if (!back.ok() || !(*back == *metadata)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) {
    read(input);
  } else {
    read(testing::sealed_metadata(
        input, data[0] / 2 % 2));  // once with this minor version and once with a later one
  }
  return 0;
}
