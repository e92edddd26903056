// SPDX-License-Identifier: Apache-2.0
#include "compat/staged_info.hpp"

#include "fabric/address.hpp"
#include "rail/nic_list.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

namespace headrace::compat {
namespace {

StagedInfo info_of(std::uint64_t chunk_bytes, std::uint64_t memory_bytes) {
  const std::string owner =
      rail::encode_nic_list(std::array{std::string("tcp:192.0.2.1:4711/0123456789abcdef")});
  const std::string keys = rail::encode_nic_list(std::array{std::string("key")});
  const auto memory = fabric::make_descriptor(FabricAccess::writable, memory_bytes, owner, keys);
  const auto address = fabric::make_address(7, {owner});
  return {true, 5, chunk_bytes, FabricDescriptor::from_bytes(memory->bytes).value(),
          FabricAddress::from_bytes(address->bytes).value()};
}

TEST(StagedInfo, is_the_same_when_it_was_written_and_read) {
  const std::string bytes = encode(info_of(4096, 4096 + sizeof(ChunkHead)));
  const auto read = read_staged_info(bytes);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(read->is_server);
  EXPECT_EQ(read->scope, 5U);
  EXPECT_EQ(read->staging_bytes, 4096U);
  EXPECT_EQ(encode(*read), bytes);
}

/// A server would send chunks of 0 bytes without end; the largest number would wrap round.
TEST(StagedInfo, a_chunk_that_does_not_fit_the_buffer_or_has_no_byte_is_refused) {
  for (const auto& [chunk, memory] : {std::pair<std::uint64_t, std::uint64_t>{0, sizeof(ChunkHead)},
                                      {UINT64_MAX - sizeof(ChunkHead) + 2, 1},
                                      {4096, 4096},
                                      {4095, 4096 + sizeof(ChunkHead)}}) {
    const auto read = read_staged_info(encode(info_of(chunk, memory)));
    ASSERT_FALSE(read) << chunk;
    EXPECT_EQ(read.error().code, Code::corrupt);
    EXPECT_NE(read.error().message.find("has another size"), std::string::npos) << read.error().message;
  }
}

}  // namespace
}  // namespace headrace::compat
