// SPDX-License-Identifier: Apache-2.0
#include "rail/cuda_ipc/shown_memory.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

namespace headrace::rail::cuda_ipc {
namespace {

ShowPacket packet_of(std::uint32_t memory, std::uint64_t address, std::uint32_t pieces = 0) {
  return {.memory = memory, .gpu = 77, .address = address, .bytes = 1000, .offset = 24, .pieces = pieces};
}
ShowPacket with_pieces(ShowPacket packet, std::vector<std::uint64_t> bytes) {
  packet.piece_bytes = std::move(bytes);
  return packet;
}
std::vector<UniqueFd> some_descriptors(std::size_t count) { return std::vector<UniqueFd>(count); }

TEST(ShowPacket, is_read_as_it_was_written_and_refused_if_it_is_damaged) {
  const auto packet = with_pieces(packet_of(5, 4096, 3), {4096, 8192});
  const std::string bytes = encode(packet);
  const auto read = read_show_packet(bytes, 2);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(encode(*read), bytes);
  EXPECT_EQ(read->memory, 5U);
  EXPECT_EQ(read->piece_bytes, packet.piece_bytes);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(read_show_packet(bytes.substr(0, length), 2)) << length;
  EXPECT_FALSE(read_show_packet(bytes, 1));
  EXPECT_FALSE(read_show_packet(bytes, 3));
}

TEST(ShowPacket, that_cannot_be_is_refused) {
  const auto refuses = [](const ShowPacket& packet) {
    return read_show_packet(encode(packet), packet.piece_bytes.size()).code() == Code::corrupt;
  };
  ShowPacket empty = packet_of(1, 4096);
  empty.bytes = 0;
  ShowPacket wraps = packet_of(1, std::numeric_limits<std::uint64_t>::max() - 5);
  EXPECT_TRUE(refuses(empty));
  EXPECT_TRUE(refuses(wraps));
  EXPECT_TRUE(refuses(packet_of(1, 4096, 2))) << "pieces, and none comes";
  EXPECT_TRUE(refuses(with_pieces(packet_of(1, 4096, 1), {1, 2}))) << "more pieces than there are";
  EXPECT_TRUE(refuses(with_pieces(packet_of(1, 4096, max_shown_pieces + 1), {1})));
  EXPECT_TRUE(refuses(with_pieces({.memory = 1, .says = ShowPacket::Says::gone}, {1})))
      << "gone, with a descriptor";
}

TEST(ShownMemories, are_found_by_address_once_all_of_their_pieces_have_come) {
  ShownMemories shown(false);
  ASSERT_TRUE(shown.take(packet_of(1, 4096), {}));
  EXPECT_EQ(shown.gpu_of(4096, 1000), 77U);
  EXPECT_EQ(shown.gpu_of(5095, 1), 77U);
  EXPECT_FALSE(shown.gpu_of(4095, 1));
  EXPECT_FALSE(shown.gpu_of(5095, 2));
  EXPECT_FALSE(shown.gpu_of(4097, std::numeric_limits<std::uint64_t>::max()));

  ASSERT_TRUE(shown.take(with_pieces(packet_of(2, 8192, 3), {4096, 4096}), some_descriptors(2)));
  EXPECT_FALSE(shown.gpu_of(8192, 10));
  ASSERT_TRUE(shown.take(with_pieces(packet_of(2, 8192, 3), {4096}), some_descriptors(1)));
  EXPECT_TRUE(shown.gpu_of(8192, 10));
  ASSERT_TRUE(shown.take({.memory = 2, .says = ShowPacket::Says::gone}, {}));
  EXPECT_FALSE(shown.gpu_of(8192, 10));
}

TEST(ShownMemories, that_are_shown_twice_or_with_other_words_are_lies) {
  ShownMemories shown(false);
  ASSERT_TRUE(shown.take(packet_of(1, 4096), {}));
  EXPECT_EQ(shown.take(packet_of(1, 4096), {}).code(), Code::corrupt);
  ASSERT_TRUE(shown.take(with_pieces(packet_of(2, 8192, 2), {4096}), some_descriptors(1)));
  EXPECT_EQ(shown.take(with_pieces(packet_of(2, 8200, 2), {4096}), some_descriptors(1)).code(),
            Code::corrupt);
  EXPECT_EQ(shown.take(with_pieces(packet_of(2, 8192, 2), {1, 1}), some_descriptors(2)).code(),
            Code::corrupt);
}

/// Those that are gone are told once nobody may have them open.
TEST(ShownMemories, that_are_gone_are_told_when_the_last_that_holds_them_lets_go) {
  const auto closed = std::make_shared<ClosedMemories>(EventFd::create().value());
  {
    ShownMemories shown(false, closed);
    ASSERT_TRUE(shown.take(packet_of(1, 4096), {}));
    ASSERT_TRUE(shown.take(packet_of(2, 8192), {}));
    EXPECT_TRUE(closed->take().empty());
    ASSERT_TRUE(shown.take({.memory = 1, .says = ShowPacket::Says::gone}, {}));
    EXPECT_EQ(closed->take(), std::vector<std::uint32_t>{1});
    ASSERT_TRUE(shown.take({.memory = 1, .says = ShowPacket::Says::gone}, {}));
    EXPECT_TRUE(closed->take().empty()) << "it is told once";
  }
  EXPECT_EQ(closed->take(), std::vector<std::uint32_t>{2});
}

}  // namespace
}  // namespace headrace::rail::cuda_ipc
