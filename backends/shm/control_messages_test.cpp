// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/control_messages.hpp"

#include <gtest/gtest.h>

#include <random>

namespace headrace::shm {
namespace {

using host_link::Other;

TEST(ControlMessages, come_back_as_they_were_sent) {
  const Nonce nonce = decode_greeting(encode_greeting({3, 4}));
  EXPECT_EQ(nonce.address, 3U);
  EXPECT_EQ(nonce.value, 4U);
  EXPECT_EQ(encode_greeting({3, 4}).size(), protocol.greeting_bytes);
  const auto share = std::get<Share>(decode(encode(Share{{{1, 2, 3}, {4, 5, 6}}}), 2).value());
  ASSERT_EQ(share.regions.size(), 2U);
  EXPECT_EQ(share.regions[1].region_id, 4U);
  EXPECT_EQ(share.regions[1].length_bytes, 6U);
  EXPECT_EQ(std::get<Unshare>(decode(encode(Unshare{{8, 9}}), 0).value()).region_ids,
            (std::vector<std::uint32_t>{8, 9}));
  EXPECT_EQ(std::get<OpenLane>(decode(encode(OpenLane{5}), 1).value()).lane_id, 5U);
  EXPECT_EQ(std::get<ServeLane>(decode(encode(ServeLane{6}), 0).value()).lane_id, 6U);
  EXPECT_EQ(std::get<DropLane>(decode(encode(DropLane{7}), 0).value()).lane_id, 7U);
}

TEST(ControlMessages, cut_lengthened_or_with_other_descriptors_are_corrupt) {
  const std::vector<std::pair<Other, std::size_t>> all = {{encode(Share{{{1, 2, 3}}}), 1},
                                                          {encode(Unshare{{8}}), 0},
                                                          {encode(OpenLane{5}), 1},
                                                          {encode(ServeLane{6}), 0},
                                                          {encode(DropLane{7}), 0}};
  for (const auto& [message, descriptors] : all) {
    for (std::size_t length = 0; length < message.body.size(); ++length)
      EXPECT_FALSE(decode({message.type, message.body.substr(0, length)}, descriptors).ok());
    EXPECT_EQ(decode({message.type, message.body + "x"}, descriptors).code(), Code::corrupt);
    EXPECT_EQ(decode(message, descriptors + 1).code(), Code::corrupt);
    EXPECT_EQ(decode({99, message.body}, descriptors).code(), Code::corrupt);
  }
}

TEST(ControlMessages, with_flipped_bits_are_decoded_or_refused_and_nothing_else) {
  std::mt19937 random(3);
  for (const Other& message : {encode(Share{{{1, 2, 3}}}), encode(Unshare{{8, 9}}), encode(OpenLane{5})}) {
    for (int round = 0; round < 5000; ++round) {
      Other flipped = message;
      for (int flips = 0; flips < 3; ++flips)
        flipped.body[random() % flipped.body.size()] ^= static_cast<char>(1 << random() % 8);
      const auto decoded = decode(flipped, random() % 5);
      if (!decoded) {
        EXPECT_FALSE(decoded.error().message.empty());
      }
    }
  }
}

}  // namespace
}  // namespace headrace::shm
