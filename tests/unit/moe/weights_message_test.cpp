// SPDX-License-Identifier: Apache-2.0
// Messages about weights: what is read is what was written, and nothing else is read.
#include "moe/weights_message.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace headrace::moe {
namespace {

WeightsCounts some_counts() {
  return {.call = 7, .active = 0b101, .counts = {3, 0, 9}, .kept = {0, no_rank}, .held = {0, 2}};
}

TEST(MoEWeightsMessages, are_read_as_they_were_written) {
  const WeightsCard card{
      .life = 5, .table = 6, .tensors = "float32 [places, 4]", .locations = {{1, 64}, {0, 0}}};
  EXPECT_EQ(*decode_weights_card(encode(card)), card);
  EXPECT_EQ(*decode_weights_counts(encode(some_counts())), some_counts());
  const WeightsEnd good{.call = 7, .plan = 9, .text = {}};
  const WeightsEnd bad{.call = 8, .plan = 0, .code = Code::timed_out, .text = "late"};
  EXPECT_EQ(*decode_weights_end(encode(good)), good);
  EXPECT_EQ(*decode_weights_end(encode(bad)), bad);
}

TEST(MoEWeightsMessages, that_end_early_or_late_or_are_of_another_kind_are_corrupt) {
  const std::string whole = encode(some_counts());
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_EQ(decode_weights_counts(std::string_view(whole).substr(0, length)).code(), Code::corrupt);
  EXPECT_EQ(decode_weights_counts(whole + "x").error().message,
            "a message about weights is corrupt at offset 57: 1 bytes behind its end");
  EXPECT_EQ(decode_weights_end(whole).error().message,
            "a message about weights is corrupt at offset 0: kind 2, expected 3");
  EXPECT_EQ(weights_kind("\x09").error().message,
            "a message about weights is corrupt at offset 1: kind 9 is not known");
}

TEST(MoEWeightsMessages, that_claim_too_many_numbers_or_an_end_without_a_reason_are_corrupt) {
  std::string many = encode(some_counts());
  many[18] = 1;  // the second byte of the number of counts, and its third: 65,795
  many[19] = 1;
  EXPECT_EQ(decode_weights_counts(many).error().message,
            "a message about weights is corrupt at offset 21: counts has 65795 numbers, at most 4096 can be");
  const std::string neither = encode(WeightsEnd{.call = 1, .plan = 0, .code = Code::ok, .text = {}});
  EXPECT_EQ(decode_weights_end(neither).code(), Code::corrupt);
}

}  // namespace
}  // namespace headrace::moe
