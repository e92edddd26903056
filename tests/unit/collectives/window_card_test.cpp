// SPDX-License-Identifier: Apache-2.0
#include "collectives/window_card.hpp"

#include <gmock/gmock.h>

namespace headrace::collectives {
namespace {

using testing::HasSubstr;

const WindowCard example{3, 77, 5, 6, 1000, 4096, DType::int64, true, "agent", "metadata"};

TEST(WindowCard, is_read_as_it_was_written) {
  const auto read = WindowCard::decode(example.encode());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->window, 3U);
  EXPECT_EQ(read->mailbox, 77U);
  EXPECT_EQ(read->elements, 5U);
  EXPECT_EQ(read->signals, 6U);
  EXPECT_EQ(read->count, 1000U);
  EXPECT_EQ(read->address, 4096U);
  EXPECT_EQ(read->dtype, DType::int64);
  EXPECT_TRUE(read->allocated);
  EXPECT_EQ(read->agent, "agent");
  EXPECT_EQ(read->metadata, "metadata");
}

TEST(WindowCard, that_is_cut_off_or_has_impossible_values_is_refused) {
  const std::string bytes = example.encode();
  const std::size_t least = bytes.size() - example.metadata.size();
  for (std::size_t length = 0; length < least; ++length)
    EXPECT_EQ(WindowCard::decode(bytes.substr(0, length)).code(), Code::corrupt) << length;
  WindowCard other = example;
  other.dtype = static_cast<DType>(99);
  EXPECT_THAT(WindowCard::decode(other.encode()).error().message, HasSubstr("element type 99 is none"));
  other = example;
  other.count = ~std::uint64_t{0};
  EXPECT_THAT(WindowCard::decode(other.encode()).error().message, HasSubstr("are too many"));
}

TEST(WindowOutcome, is_read_with_the_bytes_behind_it) {
  const std::string all_right = encode_outcome({}) + "rest";
  const auto good = decode_outcome(all_right);
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good->result.ok());
  EXPECT_EQ(good->rest, "rest");
  const std::string bytes = encode_outcome(Error{Code::exhausted, "no memory"});
  const auto bad = decode_outcome(bytes);
  ASSERT_TRUE(bad.ok());
  EXPECT_EQ(bad->result.code(), Code::exhausted);
  EXPECT_EQ(bad->result.error().message, "no memory");
  EXPECT_EQ(decode_outcome(bytes.substr(0, 8)).code(), Code::corrupt);
  EXPECT_EQ(decode_outcome(std::string(6, '\x7f')).code(), Code::corrupt);
}

}  // namespace
}  // namespace headrace::collectives
