// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/control_messages.hpp"

#include <gtest/gtest.h>

#include <random>

namespace headrace::cuda_ipc {
namespace {

Offer some_offer() {
  Offer offer{1, 2, 3, 4, 5, 6, "GPU-7", 8, {}, {}, 9};
  offer.handle.bytes[63] = 10;
  offer.proof.bytes[0] = 11;
  return offer;
}

std::vector<std::pair<Message, std::size_t>> all_messages() {
  return {{Want{1, 2}, 0},
          {some_offer(), 0},
          {Pieces{{65536, 131072}}, 2},
          {Refused{1, 2, Code::not_found, "no"}, 0},
          {Gone{7}, 0},
          {ByOwner{1, 2}, 1},
          {Move{3, 4}, 1},
          {Go{4}, 0},
          {Drop{5}, 0}};
}

TEST(CudaIpcMessages, come_back_as_they_were_sent) {
  const auto offer = std::get<Offer>(decode(encode(some_offer()), 0).value());
  EXPECT_EQ(offer.region_id, 1U);
  EXPECT_EQ(offer.device, 2U);
  EXPECT_EQ(offer.allocation, 3U);
  EXPECT_EQ(offer.address, 4U);
  EXPECT_EQ(offer.offset, 5U);
  EXPECT_EQ(offer.bytes, 6U);
  EXPECT_EQ(offer.uuid, "GPU-7");
  EXPECT_EQ(offer.pieces, 8U);
  EXPECT_EQ(offer.handle.bytes[63], 10);
  EXPECT_EQ(offer.proof.bytes[0], 11);
  EXPECT_EQ(offer.nonce, 9U);
  EXPECT_EQ(std::get<Pieces>(decode(encode(Pieces{{65536, 131072}}), 2).value()).bytes[1], 131072U);
  EXPECT_EQ(std::get<Refused>(decode(encode(Refused{1, 2, Code::not_found, "no"}), 0).value()).text, "no");
  EXPECT_EQ(std::get<Want>(decode(encode(Want{1, 2}), 0).value()).device, 2U);
  EXPECT_EQ(std::get<Gone>(decode(encode(Gone{7}), 0).value()).region_id, 7U);
  EXPECT_EQ(std::get<ByOwner>(decode(encode(ByOwner{1, 2}), 1).value()).device, 2U);
  EXPECT_EQ(std::get<Move>(decode(encode(Move{3, 4}), 1).value()).number, 3U);
  EXPECT_EQ(std::get<Move>(decode(encode(Move{3, 4}), 1).value()).end_word, 4U);
  EXPECT_EQ(std::get<Go>(decode(encode(Go{4}), 0).value()).number, 4U);
  EXPECT_EQ(std::get<Drop>(decode(encode(Drop{5}), 0).value()).number, 5U);
}

TEST(CudaIpcMessages, cut_lengthened_or_with_other_descriptors_are_corrupt) {
  for (const auto& [message, descriptors] : all_messages()) {
    const host_link::Other packet = encode(message);
    for (std::size_t length = 0; length < packet.body.size(); ++length)
      EXPECT_EQ(decode({packet.type, packet.body.substr(0, length)}, descriptors).code(), Code::corrupt);
    EXPECT_EQ(decode({packet.type, packet.body + "x"}, descriptors).code(), Code::corrupt);
    EXPECT_EQ(decode(packet, descriptors + 1).code(), Code::corrupt);
    EXPECT_EQ(decode({99, packet.body}, descriptors).code(), Code::corrupt);
  }
}

TEST(CudaIpcMessages, with_flipped_bits_are_decoded_or_refused_and_nothing_else) {
  std::mt19937 random(3);
  for (const auto& [message, descriptors] : all_messages()) {
    for (int round = 0; round < 3000; ++round) {
      host_link::Other packet = encode(message);
      for (int flips = 0; flips < 3; ++flips)
        packet.body[random() % packet.body.size()] ^= static_cast<char>(1 << random() % 8);
      const auto decoded = decode(packet, descriptors);
      if (!decoded) {
        EXPECT_FALSE(decoded.error().message.empty());
      }
    }
  }
}

}  // namespace
}  // namespace headrace::cuda_ipc
