// SPDX-License-Identifier: Apache-2.0
#include "wire/metadata_request.hpp"

#include "base/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace headrace::wire {
namespace {

using ::testing::HasSubstr;
using Limits = MetadataSocketLimits;

/// Removes the length prefix and checks it.
std::string_view without_length(std::string_view message) {
  std::uint32_t length = 0;
  EXPECT_GE(message.size(), sizeof length);
  std::memcpy(&length, message.data(), sizeof length);
  EXPECT_EQ(length, message.size() - sizeof length);
  return message.substr(sizeof length);
}

TEST(MetadataRequest, FetchAndSendAreDecodedAsTheyWereEncoded) {
  const MetadataRequest fetch = FetchRequest{"decode", 17};
  const std::string fetch_bytes = *encode(fetch);
  EXPECT_EQ(*decode_metadata_request(without_length(fetch_bytes)), fetch);
  const std::string metadata(70000, 'm');
  const MetadataRequest send = SendRequest{metadata};
  const std::string send_bytes = *encode(send);
  EXPECT_EQ(*decode_metadata_request(without_length(send_bytes)), send);
}

TEST(MetadataRequest, OnlyASendMayBeLong) {
  const std::string send = *encode(MetadataRequest(SendRequest{"m"}));
  const std::string fetch = *encode(MetadataRequest(FetchRequest{"l", 1}));
  EXPECT_EQ(metadata_request_limit(without_length(send).substr(0, 2)), Limits::large_bytes);
  EXPECT_EQ(metadata_request_limit(without_length(fetch).substr(0, 2)), Limits::small_bytes);
  EXPECT_EQ(metadata_request_limit(""), Limits::small_bytes);
  EXPECT_EQ(encode(MetadataRequest(FetchRequest{std::string(256, 'l'), 0})).code(), Code::invalid_argument);
}

TEST(MetadataRequest, AMalformedRequestIsRefusedWithAnOffset) {
  for (const std::string& message :
       {std::string(), std::string("\xc0"), std::string("\x91\x01"), std::string("\x92\x01\xa0"),
        std::string("\x92\x02\xa1x"), std::string("\x93\x01\xa0\x00\x00", 5), std::string("\x91\x07")}) {
    const auto request = decode_metadata_request(message);
    ASSERT_FALSE(request.ok());
    EXPECT_EQ(request.code(), Code::corrupt);
    EXPECT_THAT(request.error().message, HasSubstr("at offset"));
  }
}

TEST(MetadataAnswer, MetadataAndErrorsAreDecodedAsTheyWereEncoded) {
  const std::string answer = encode_fetch_answer(std::string("bytes"));
  EXPECT_EQ(*decode_fetch_answer(without_length(answer)), "bytes");
  const std::string welcome = encode_send_answer({});
  EXPECT_TRUE(decode_send_answer(without_length(welcome)).ok());

  const Error error = make_error(Code::not_found, "version 9 is newer than ours: ask for a full export");
  const std::string fetch_refusal = encode_fetch_answer(error);
  const std::string send_refusal = encode_send_answer(error);
  for (const auto& [code, message] :
       {std::pair(decode_fetch_answer(without_length(fetch_refusal)).error().code,
                  decode_fetch_answer(without_length(fetch_refusal)).error().message),
        std::pair(decode_send_answer(without_length(send_refusal)).error().code,
                  decode_send_answer(without_length(send_refusal)).error().message)}) {
    EXPECT_EQ(code, Code::not_found);
    EXPECT_EQ(message, error.message);
  }
}

TEST(MetadataAnswer, ALongSentenceIsCutAndAnUnknownCodeIsBackendFailed) {
  const std::string cut = encode_send_answer(make_error(Code::internal, "{}", std::string(5000, 'x')));
  EXPECT_EQ(decode_send_answer(without_length(cut)).error().message.size(), Limits::text_bytes);
  EXPECT_EQ(decode_send_answer(std::string_view("\x92\x63\xa1x", 4)).code(), Code::backend_failed);
}

TEST(MetadataAnswer, AMalformedAnswerIsRefused) {
  for (const std::string& message :
       {std::string(), std::string("\x90"), std::string("\x91\x03"), std::string("\x92\x00\xa1x", 4),
        std::string("\x92\x00\xc4\x01xy", 6), std::string("\x91\x00", 2)}) {
    EXPECT_EQ(decode_fetch_answer(message).code(), Code::corrupt);
  }
  EXPECT_EQ(decode_send_answer(std::string_view("\x92\x00\x00", 3)).code(), Code::corrupt);
}

}  // namespace
}  // namespace headrace::wire
