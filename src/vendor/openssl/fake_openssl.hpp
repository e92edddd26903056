// SPDX-License-Identifier: Apache-2.0
// A libcrypto for tests without one: digests depend on key and message, and protect nothing.
#pragma once

#include "base/hash.hpp"
#include "vendor/openssl/openssl.hpp"

#include <cstdint>
#include <cstring>
#include <vector>

namespace headrace {

[[nodiscard]] inline OpenSslTable fake_openssl_table() {
  OpenSslTable table;
  table.evp_sha256 = []() -> const EVP_MD* { return nullptr; };
  table.hmac = [](const EVP_MD*, const void* key, int key_length, const unsigned char* message,
                  std::size_t length, unsigned char* digest, unsigned* digest_length) -> unsigned char* {
    const std::span key_bytes(static_cast<const std::byte*>(key), static_cast<std::size_t>(key_length));
    const std::uint64_t seed = hash64(key_bytes);
    for (std::uint64_t part = 0; part < 4; ++part) {
      const std::uint64_t word = hash64(std::as_bytes(std::span(message, length)), seed + part);
      std::memcpy(digest + part * sizeof word, &word, sizeof word);
    }
    *digest_length = 32;
    return digest;
  };
  table.crypto_memcmp = [](const void* a, const void* b, std::size_t length) {
    return std::memcmp(a, b, length);
  };
  return table;
}

}  // namespace headrace
