// SPDX-License-Identifier: Apache-2.0
// Puts an envelope with the right length and checksum around any bytes, so that a test or fuzzer reaches the
// reader of the body.
#pragma once

#include "wire/metadata.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace headrace::testing {

inline std::string sealed_metadata(std::string_view body, std::uint16_t minor = wire::MetadataLimits::minor,
                                   std::uint16_t major = wire::MetadataLimits::major) {
  std::string bytes(wire::MetadataLimits::envelope_bytes, '\0');
  const std::uint64_t length = body.size();
  std::memcpy(bytes.data(), "HRMD", 4);
  std::memcpy(bytes.data() + 4, &major, sizeof major);
  std::memcpy(bytes.data() + 6, &minor, sizeof minor);
  std::memcpy(bytes.data() + 8, &length, sizeof length);
  const std::uint64_t checksum = wire::metadata_checksum(std::string_view(bytes).substr(0, 16), body);
  std::memcpy(bytes.data() + 16, &checksum, sizeof checksum);
  return bytes.append(body);
}

}  // namespace headrace::testing
