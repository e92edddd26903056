// SPDX-License-Identifier: Apache-2.0
// What travels beside rows, and rows that are cast: examples made by hand, and calls that are wrong.
#include "base/small_float.hpp"
#include "moe/cast.hpp"
#include "moe/float8_blocks.hpp"
#include "ranks.hpp"

#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

namespace headrace::moe {
namespace {

/// Two blocks, the second one short, of which the first number is the largest.
std::vector<std::byte> two_blocks(float first, float second) {
  std::vector<std::byte> row(144 * 2);
  moe_reference::store(DType::bfloat16, row.data(), first);
  moe_reference::store(DType::bfloat16, row.data() + 2, first / 2);
  moe_reference::store(DType::bfloat16, row.data() + 256, second);
  return row;
}

std::uint8_t number(const std::vector<std::byte>& bytes, std::size_t at) {
  return static_cast<std::uint8_t>(bytes[at]);
}

TEST(MoECastRows, the_largest_of_a_block_becomes_448) {
  std::vector<std::byte> row(144), scales(8);
  cast_row(two_blocks(896, -7).data(), 144, MoECast::float32, row.data(), scales.data());
  EXPECT_EQ(moe_reference::load(DType::float32, scales.data()), 2.0F);
  EXPECT_EQ(moe_reference::load(DType::float32, scales.data() + 4), 7.0F / 448);
  EXPECT_EQ(number(row, 0), 0x7e);    // 448
  EXPECT_EQ(number(row, 1), 0x76);    // 224
  EXPECT_EQ(number(row, 128), 0xfe);  // -448
  EXPECT_EQ(number(row, 2), 0);
}

TEST(MoECastRows, a_ue8m0_scale_is_the_next_higher_power_of_two) {
  std::vector<std::byte> row(144), scales(4, std::byte{0xff});
  cast_row(two_blocks(896, 900).data(), 144, MoECast::ue8m0, row.data(), scales.data());
  EXPECT_EQ(number(scales, 0), 128);  // 2
  EXPECT_EQ(number(scales, 1), 129);  // 4, as 900 / 448 is more than 2
  EXPECT_EQ(number(scales, 2), 0);
  EXPECT_EQ(number(scales, 3), 0);
  EXPECT_EQ(number(row, 0), 0x7e);
  EXPECT_EQ(number(row, 128), 0x76);  // 225 becomes 224
}

TEST(MoECastRows, a_block_of_zeros_has_a_scale) {
  std::vector<std::byte> row(144), scales(8);
  cast_row(two_blocks(0, 0).data(), 144, MoECast::float32, row.data(), scales.data());
  EXPECT_EQ(moe_reference::load(DType::float32, scales.data()), 1e-4F / 448);
  EXPECT_EQ(number(row, 0), 0);
}

TEST(MoECastRows, stored_blocks_are_read_as_their_scale_times_what_was_stored) {
  std::vector<float> values(130, 1.0F), read(130);
  values[3] = 448, values[129] = 0.5F;
  std::vector<std::byte> row(144), scales(8);
  store_blocks(values, row.data(), scales.data());
  load_blocks(read, row.data(), scales.data());
  EXPECT_EQ(read[3], 448);
  EXPECT_EQ(read[0], 1);
  EXPECT_EQ(read[129], 0.5F);
}

TEST(MoECastRows, plain_functions_of_float8_are_those_of_the_base) {
  for (int stored = 0; stored < 256; ++stored) {
    const auto byte = static_cast<std::uint8_t>(stored);
    const float value = float_of_float8(byte);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(value), std::bit_cast<std::uint32_t>(Float8E4M3::load(byte)));
    EXPECT_EQ(float8_of(value), byte);
  }
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 9973) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(float8_of(value), Float8E4M3::store(value)) << value;
  }
}

/// One rank alone, with rows of float8 and two payloads.
class WrongColumns : public testing::Test {
 protected:
  WrongColumns() : ranks_(config()), rank_(ranks_[0]), routing_(rank_.new_routing()) {
    tokens_.count = 2;
    tokens_.rows = memory_, tokens_.scales = memory_;
    tokens_.experts = experts_;
    tokens_.payloads[0].rows = tokens_.payloads[1].rows = memory_;
    out_.rows = out_.scales = memory_;
    out_.payloads[0] = out_.payloads[1] = memory_ + 1024;
  }
  static MoEConfig config() {
    MoEConfig config;
    config.experts = 4, config.top_k = 1, config.hidden = 256, config.max_tokens = 4;
    config.dtype = DType::float8_e4m3fn, config.scale_bytes = 8;
    config.payload_bytes = {4, 6};
    return config;
  }
  void refused(const MoETokens& tokens, std::string_view sentence) {
    const auto result = rank_.dispatch(tokens, out_, routing_);
    ASSERT_FALSE(result) << sentence;
    EXPECT_EQ(result.code(), Code::invalid_argument);
    EXPECT_EQ(result.error().message, sentence);
  }
  Ranks ranks_;
  Rank& rank_;
  Routing routing_;
  std::byte memory_[4096] = {};
  std::int64_t experts_[2] = {0, 1};
  MoETokens tokens_;
  MoERows out_;
};

TEST_F(WrongColumns, say_what_is_wrong_and_send_nothing) {
  MoETokens wrong = tokens_;
  wrong.payloads[1].rows = nullptr;
  refused(wrong, "2 tokens are given, and no payloads[1], expected 6 bytes each");
  wrong = tokens_, wrong.payloads[1].stride = 5;
  refused(wrong, "the stride of payloads[1] is 5, and a row has 6 bytes: expected 0, or at least that");
  wrong = tokens_, wrong.scale_unit_bytes = 3;
  refused(wrong, "scale_unit_bytes is 3, expected 1, 2, 4 or 8");
  wrong = tokens_, wrong.scale_stride = 4;
  refused(wrong, "scale_stride is 4, and a row has 8 bytes: expected 0, or at least that");
  wrong = tokens_, wrong.cast = MoECast::float32;
  refused(wrong, "scales are given, and cast is float32, which makes them: give none");
  wrong.scales = nullptr, wrong.cast = MoECast::ue8m0;
  refused(wrong, "cast is ue8m0, and scale_bytes is 8: expected 4 for 256 elements");
  wrong.cast = static_cast<MoECast>(7);
  refused(wrong, "cast is 7, expected none, float32 or ue8m0");
  wrong.cast = MoECast::float32, wrong.row_stride = 256;
  refused(wrong, "row_stride is 256, and a row has 512 bytes: expected 0, or at least that");
  const std::int32_t many = 3;
  wrong = tokens_, wrong.count_at = &many;
  refused(wrong, "count_at says 3 tokens, expected 0 to the 2 that are given");
  out_.payloads[1] = nullptr;
  refused(tokens_, "no memory for payloads[1] is given, expected 4 times 6 bytes");
  out_.payloads[1] = memory_ + 1024;
  EXPECT_TRUE(rank_.dispatch(tokens_, out_, routing_));
}

TEST(MoECastCalls, of_rows_that_do_not_become_float8_are_refused) {
  MoEConfig config;
  config.experts = 1, config.top_k = 1, config.hidden = 16, config.max_tokens = 1;
  Ranks ranks(config);
  Routing routing = ranks[0].new_routing();
  const std::byte row[32] = {};
  const std::int64_t expert = 0;
  MoETokens tokens{.count = 1, .rows = row, .experts = &expert};
  tokens.cast = MoECast::float32;
  EXPECT_EQ(ranks[0].dispatch_send(tokens, routing).error().message,
            "cast is float32, and dtype is bfloat16: expected float8_e4m3fn");
}

TEST(MoEWindowMemory, is_asked_for_before_a_combine_uses_it) {
  MoEConfig config;
  config.experts = 1, config.top_k = 1, config.hidden = 16, config.max_tokens = 1;
  Ranks by_expert(config);
  Routing routing = by_expert[0].new_routing();
  Output out(config);
  std::vector<MoEWindowRows> memory(1);
  EXPECT_EQ(by_expert[0].combine_memory(routing, memory).error().message,
            "the routing has no dispatch that was received: dispatch with it first");
  ASSERT_TRUE(by_expert[0].dispatch({}, out.argument(), routing));
  EXPECT_EQ(by_expert[0].combine_memory(routing, memory).code(), Code::not_supported);
  EXPECT_EQ(by_expert[0].combine_send({.in_window = true}, routing).error().message,
            "in_window is given, and combine_memory was not called for this combine: call it first");
}

/// A routing that is used again takes other weights, as a backward pass does.
TEST(MoERoutingAgain, takes_other_weights) {
  MoEConfig config;
  config.experts = 2, config.top_k = 2, config.hidden = 4, config.max_tokens = 1;
  config.dtype = config.combine_dtype = DType::float32;
  Ranks ranks(config);
  Routing routing = ranks[0].new_routing();
  Output out(config);
  const std::vector<float> row{1, 1, 1, 1}, weights{2, 3}, other{5, 7};
  const std::int64_t experts[] = {0, 1};
  MoETokens tokens{.count = 1, .rows = row.data(), .experts = experts, .weights = weights.data()};
  const auto sum_of_one = [&] {
    EXPECT_TRUE(ranks[0].dispatch(tokens, out.argument(), routing));
    std::vector<float> sum(4);
    EXPECT_TRUE(ranks[0].combine({.rows = out.got.rows.data()}, {.rows = sum.data()}, routing));
    return sum[0];
  };
  EXPECT_EQ(sum_of_one(), 5);
  tokens.experts = nullptr, tokens.weights = nullptr;
  EXPECT_EQ(sum_of_one(), 5);
  tokens.weights = other.data();
  EXPECT_EQ(sum_of_one(), 12);
}

}  // namespace
}  // namespace headrace::moe
