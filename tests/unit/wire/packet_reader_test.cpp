// SPDX-License-Identifier: Apache-2.0
#include "wire/packet_reader.hpp"

#include "wire/byte_writer.hpp"

#include <gtest/gtest.h>

namespace headrace::wire {
namespace {

std::string packet() {
  ByteWriter out;
  out.number(std::uint32_t{7});
  out.number(std::int32_t{-3});
  out.text("name", 255);
  out.bytes("tail");
  return std::move(out).take();
}

TEST(PacketReader, reads_what_a_writer_wrote) {
  const std::string bytes = packet();
  PacketReader in(bytes);
  EXPECT_EQ(in.number<std::uint32_t>(), 7U);
  EXPECT_EQ(in.number<std::int32_t>(), -3);
  EXPECT_EQ(in.text(1, 4), "name");
  EXPECT_FALSE(in.complete()) << "something is left over";
  EXPECT_EQ(in.rest(), "tail");
  EXPECT_TRUE(in.complete());
}

TEST(PacketReader, a_packet_that_is_cut_anywhere_is_not_complete_and_reads_as_zeros) {
  const std::string whole = packet();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    PacketReader in(std::string_view(whole).substr(0, length));
    const auto first = in.number<std::uint32_t>();
    EXPECT_EQ(first, length >= 4 ? 7U : 0U);
    (void)in.number<std::int32_t>();
    (void)in.text(1, 255);
    (void)in.bytes(4);
    EXPECT_FALSE(in.good()) << length;
    EXPECT_FALSE(in.complete()) << length;
    EXPECT_EQ(in.number<std::uint64_t>(), 0U) << "nothing is read past the end";
  }
}

TEST(PacketReader, a_text_outside_its_bounds_is_refused) {
  ByteWriter out;
  out.text("four", 255);
  const std::string bytes = std::move(out).take();
  EXPECT_EQ(PacketReader(bytes).text(5, 255), "");
  EXPECT_EQ(PacketReader(bytes).text(0, 3), "");
  EXPECT_EQ(PacketReader(bytes).text(4, 4), "four");
}

TEST(ByteWriter, cuts_a_text_at_its_bound) {
  ByteWriter out;
  out.text("longer", 4);
  EXPECT_EQ(out.view(), std::string_view("\x04\x00long", 6));
}

}  // namespace
}  // namespace headrace::wire
