// SPDX-License-Identifier: Apache-2.0
#include "vendor/openssl/openssl.hpp"

#include "vendor/dynamic_library.hpp"
#include "vendor/openssl/fake_openssl.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace headrace {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string hex(const OpenSsl::Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

TEST(OpenSsl, TheHmacsAreThoseOfTheStandard) {
  const OpenSsl crypto = OpenSsl::load().value();
  // RFC 4231, test cases 1, 2 and 6; case 6 has a key longer than a block.
  EXPECT_EQ(hex(crypto.hmac_sha256(bytes_of(std::string(20, '\x0b')), bytes_of("Hi There")).value()),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(crypto.hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?")).value()),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(crypto
                    .hmac_sha256(bytes_of(std::string(131, '\xaa')),
                                 bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))
                    .value()),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(OpenSsl, AnEmptyKeyAndAnEmptyMessageAreLegal) {
  const OpenSsl crypto = OpenSsl::load().value();
  EXPECT_EQ(hex(crypto.hmac_sha256({}, {}).value()),
            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(OpenSsl, EqualComparesAllBytesAndTheLength) {
  for (const OpenSsl& crypto : {OpenSsl::load().value(), OpenSsl(fake_openssl_table())}) {
    EXPECT_TRUE(crypto.equal(bytes_of("token"), bytes_of("token")));
    EXPECT_TRUE(crypto.equal({}, {}));
    EXPECT_FALSE(crypto.equal(bytes_of("token"), bytes_of("tokem")));
    EXPECT_FALSE(crypto.equal(bytes_of("token"), bytes_of("uoken")));
    EXPECT_FALSE(crypto.equal(bytes_of("token"), bytes_of("toke")));
  }
}

TEST(OpenSsl, ALibraryThatRefusesIsAnError) {
  OpenSslTable table = fake_openssl_table();
  table.hmac = [](const EVP_MD*, const void*, int, const unsigned char*, std::size_t, unsigned char*,
                  unsigned*) -> unsigned char* { return nullptr; };
  EXPECT_EQ(OpenSsl(table).hmac_sha256(bytes_of("k"), bytes_of("m")).code(), Code::backend_failed);
}

TEST(FakeOpenSsl, TheFakeDigestDependsOnKeyAndMessage) {
  const OpenSsl crypto(fake_openssl_table());
  const auto digest = [&](std::string_view key, std::string_view message) {
    return hex(crypto.hmac_sha256(bytes_of(key), bytes_of(message)).value());
  };
  EXPECT_EQ(digest("k", "m"), digest("k", "m"));
  EXPECT_NE(digest("k", "m"), digest("l", "m"));
  EXPECT_NE(digest("k", "m"), digest("k", "n"));
}

TEST(DynamicLibrary, AMissingLibraryNamesThePackageThatHasIt) {
  const auto missing =
      DynamicLibrary::open({"libnonesuch.so.1", "libnonesuch.so.0"}, "nonesuch", "libnonesuch1");
  EXPECT_EQ(missing.code(), Code::not_supported);
  EXPECT_TRUE(missing.error().message.starts_with("nonesuch could not be loaded (libnonesuch.so.1: "))
      << missing.error().message;
  EXPECT_TRUE(missing.error().message.ends_with("install the Debian package libnonesuch1"))
      << missing.error().message;
}

TEST(DynamicLibrary, AMissingFunctionNamesTheLibrary) {
  const DynamicLibrary library = DynamicLibrary::open({"libc.so.6"}, "the C library", "libc6").value();
  std::size_t (*strlen)(const char*) = nullptr;
  ASSERT_TRUE(library.bind("strlen", strlen).ok());
  EXPECT_EQ(strlen("four"), 4U);
  void (*nonesuch)() = nullptr;
  const auto missing = library.bind("nonesuch", nonesuch);
  EXPECT_EQ(missing.code(), Code::not_supported);
  EXPECT_TRUE(missing.error().message.starts_with("libc.so.6 has no function nonesuch"))
      << missing.error().message;
}

}  // namespace
}  // namespace headrace
