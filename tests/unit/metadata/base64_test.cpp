// SPDX-License-Identifier: Apache-2.0
#include "metadata/base64.hpp"

#include <gtest/gtest.h>

namespace headrace::metadata {
namespace {

TEST(Base64, TheVectorsOfTheRfcAreEncodedAndDecoded) {
  for (const auto& [bytes, text] :
       {std::pair("", ""), std::pair("f", "Zg=="), std::pair("fo", "Zm8="), std::pair("foo", "Zm9v"),
        std::pair("foob", "Zm9vYg=="), std::pair("fooba", "Zm9vYmE="), std::pair("foobar", "Zm9vYmFy")}) {
    EXPECT_EQ(encode_base64(bytes), text);
    EXPECT_EQ(decode_base64(text), bytes);
  }
}

TEST(Base64, EveryByteAtEveryPositionIsDecodedAsItWasEncoded) {
  for (int first = 0; first < 256; ++first) {
    std::string bytes;
    for (int length = 0; length < 5; ++length) {
      EXPECT_EQ(decode_base64(encode_base64(bytes)), bytes);
      bytes += static_cast<char>(first + 37 * length);
    }
  }
}

TEST(Base64, TextThatIsNoCanonicalBase64IsRefused) {
  for (const char* text :
       {"Z", "Zg", "Zg=", "Zg=a", "====", "Z===", "Zm9v\n", "Zm-v", "Zh==", "Zm9=", "Zg==Zg=="}) {
    EXPECT_FALSE(decode_base64(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace headrace::metadata
