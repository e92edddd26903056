// SPDX-License-Identifier: Apache-2.0
#include "vendor/openssl/openssl.hpp"

#include "vendor/dynamic_library.hpp"

#include <climits>

namespace headrace {
namespace {

/// libcrypto rejects a null pointer even if the length is 0.
const unsigned char* start_of(std::span<const std::byte> bytes) {
  return bytes.empty() ? reinterpret_cast<const unsigned char*>("")
                       : reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

Result<OpenSsl> OpenSsl::load() {
  HEADRACE_TRY(library, DynamicLibrary::open({"libcrypto.so.3", "libcrypto.so.1.1"}, "OpenSSL's libcrypto",
                                             "libssl3"));
  OpenSslTable table;
  HEADRACE_TRY_VOID(library.bind("HMAC", table.hmac));
  HEADRACE_TRY_VOID(library.bind("EVP_sha256", table.evp_sha256));
  HEADRACE_TRY_VOID(library.bind("CRYPTO_memcmp", table.crypto_memcmp));
  return OpenSsl(table);
}

Result<OpenSsl::Digest> OpenSsl::hmac_sha256(std::span<const std::byte> key,
                                             std::span<const std::byte> message) const {
  if (key.size() > INT_MAX) {
    return make_error(Code::invalid_argument, "an HMAC key of {} bytes is longer than libcrypto accepts",
                      key.size());
  }
  Digest digest{};
  unsigned length = 0;
  const unsigned char* made =
      table_.hmac(table_.evp_sha256(), start_of(key), static_cast<int>(key.size()), start_of(message),
                  message.size(), reinterpret_cast<unsigned char*>(digest.data()), &length);
  if (made == nullptr || length != digest.size()) {
    return make_error(Code::backend_failed,
                      "libcrypto made no HMAC-SHA-256 of {} bytes under a key of {} bytes", message.size(),
                      key.size());
  }
  return digest;
}

bool OpenSsl::equal(std::span<const std::byte> a, std::span<const std::byte> b) const {
  return a.size() == b.size() && (a.empty() || table_.crypto_memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace headrace
