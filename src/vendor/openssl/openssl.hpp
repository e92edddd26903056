// SPDX-License-Identifier: Apache-2.0
// The functions of libcrypto for authentication: a keyed hash, and comparing secrets in constant time.
#pragma once

#include "base/errors.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstddef>
#include <span>

namespace headrace {

/// The functions of libcrypto that are used. A fake fills the same table.
struct OpenSslTable {
  decltype(&::HMAC) hmac = nullptr;
  decltype(&::EVP_sha256) evp_sha256 = nullptr;
  decltype(&::CRYPTO_memcmp) crypto_memcmp = nullptr;
};

class OpenSsl {
 public:
  using Digest = std::array<std::byte, 32>;

  /// Loads libcrypto 3, else 1.1.
  ///   errors   not_supported (not installed: the name of the Debian package)
  [[nodiscard]] static Result<OpenSsl> load();
  /// Uses another table, for tests.
  explicit OpenSsl(const OpenSslTable& table) : table_(table) {}

  /// HMAC-SHA-256 of `message` with `key`.
  ///   errors   backend_failed (the library refuses, for example because of a policy on keys)
  [[nodiscard]] Result<Digest> hmac_sha256(std::span<const std::byte> key,
                                           std::span<const std::byte> message) const;

  /// Whether two byte strings are equal. The time depends on their lengths only.
  [[nodiscard]] bool equal(std::span<const std::byte> a, std::span<const std::byte> b) const;

 private:
  OpenSslTable table_;
};

}  // namespace headrace
