// SPDX-License-Identifier: Apache-2.0
// Memory and views: what torchcomms' RdmaMemoryTest shows, over host memory.
#include "unit/compat/two_transports.hpp"

#include <stdexcept>
#include <utility>

namespace headrace::test_compat {
namespace {

constexpr std::size_t bytes_of_block = 8192;

TEST(CompatRdmaMemory, a_memory_has_keys_and_bounds) {
  Block block(bytes_of_block);
  const auto& memory = block.memory;
  auto* const begin = block.bytes.data();
  EXPECT_EQ(memory.getDevice(), 0);
  EXPECT_NE(memory.localKey(), nullptr);
  EXPECT_FALSE(memory.remoteKey().empty());
  EXPECT_TRUE(memory.contains(begin, bytes_of_block));
  EXPECT_TRUE(memory.contains(begin + 100, 100));
  EXPECT_FALSE(memory.contains(begin - 1, 1));
  EXPECT_FALSE(memory.contains(begin, bytes_of_block + 1));
  EXPECT_FALSE(memory.contains(begin + 1, ~std::size_t{0}));
  EXPECT_THROW(RdmaMemory(nullptr, 1, 0), std::invalid_argument);
  EXPECT_THROW(RdmaMemory(begin, 0, 0), std::invalid_argument);
}

TEST(CompatRdmaMemory, views_are_bytes_of_their_memory) {
  Block block(bytes_of_block);
  const auto& memory = block.memory;
  auto* const begin = block.bytes.data();
  const auto all = memory.createView();
  EXPECT_EQ(all.data(), begin);
  EXPECT_EQ(all.size(), bytes_of_block);
  EXPECT_EQ(all->remoteKey(), memory.remoteKey());
  EXPECT_EQ(all->localKey(), memory.localKey());
  EXPECT_TRUE(all.isParentValid());
  const auto part = memory.createView(std::size_t{1024}, 2048);
  EXPECT_EQ(part.data(), begin + 1024);
  EXPECT_EQ(part.size(), 2048U);
  const auto by_address = memory.createMutableView(begin + 10, 20);
  EXPECT_EQ(by_address.mutable_data(), begin + 10);
  const auto end = memory.createView(bytes_of_block, 0);
  EXPECT_EQ(end.data(), begin + bytes_of_block);
  EXPECT_EQ(end.size(), 0U);
}

TEST(CompatRdmaMemory, views_outside_of_their_memory_are_refused) {
  Block block(bytes_of_block);
  const auto& memory = block.memory;
  EXPECT_THROW((void)memory.createView(std::size_t{0}, bytes_of_block + 1), std::invalid_argument);
  EXPECT_THROW((void)memory.createView(bytes_of_block, 1), std::invalid_argument);
  EXPECT_THROW((void)memory.createView(~std::size_t{0}, 2), std::invalid_argument);
  EXPECT_THROW((void)memory.createView(std::size_t{1}, ~std::size_t{0}), std::invalid_argument);
  EXPECT_THROW((void)memory.createView(block.bytes.data() - 1, 1), std::out_of_range);
  EXPECT_THROW((void)memory.createMutableView(block.bytes.data(), bytes_of_block + 1), std::out_of_range);
}

TEST(CompatRdmaMemory, a_memory_moves_and_keeps_its_registration) {
  Block block(bytes_of_block);
  const auto key = block.memory.remoteKey();
  const RdmaMemory moved(std::move(block.memory));
  EXPECT_EQ(moved.remoteKey(), key);
  EXPECT_TRUE(moved.contains(block.bytes.data(), bytes_of_block));
  EXPECT_EQ(moved.createView(std::size_t{0}, 1024).size(), 1024U);
}

TEST(CompatRdmaMemory, memories_of_a_segment_share_its_registration) {
  auto bytes = fresh(bytes_of_block);
  void* const begin = bytes.data();
  ASSERT_EQ(RdmaRegTensor(nullptr, 0), commSuccess);
  {
    const RdmaMemory before(begin, bytes_of_block, 0);
    EXPECT_FALSE(before.reusedRegistration());
  }
  ASSERT_EQ(RdmaRegTensor(begin, bytes_of_block), commSuccess);
  ASSERT_EQ(RdmaRegTensor(begin, bytes_of_block), commSuccess);  // it counts
  EXPECT_EQ(RdmaRegTensor(begin, 10), commInvalidArgument);
  {
    const RdmaMemory first(begin, bytes_of_block, 0);
    const RdmaMemory second(bytes.data() + 100, 200, 0);
    EXPECT_TRUE(first.reusedRegistration() && second.reusedRegistration());
    EXPECT_EQ(first.localKey(), second.localKey());
    EXPECT_EQ(first.remoteKey(), second.remoteKey());
  }
  EXPECT_EQ(RdmaDeregTensor(begin, bytes_of_block), commSuccess);
  EXPECT_TRUE(RdmaMemory(begin, 1, 0).reusedRegistration());
  EXPECT_EQ(RdmaDeregTensor(begin, bytes_of_block), commSuccess);
  EXPECT_FALSE(RdmaMemory(begin, 1, 0).reusedRegistration());
  EXPECT_EQ(RdmaDeregTensor(begin, bytes_of_block), commInvalidArgument);
}

TEST(CompatRdmaMemory, a_part_of_a_segment_is_written) {
  TwoTransports two;
  Block from(fresh(1000));
  auto bytes = fresh(bytes_of_block);
  auto expected = bytes;
  std::copy(from.bytes.begin(), from.bytes.end(), expected.begin() + 500);
  ASSERT_EQ(RdmaRegTensor(bytes.data(), bytes_of_block), commSuccess);
  {
    const RdmaMemory part(bytes.data() + 500, 1000, 0);
    const RdmaRemoteBuffer remote{bytes.data() + 500, 1000, part.remoteKey()};
    EXPECT_EQ(end_of(two.server.write(from.memory.createView(), remote, false)), commSuccess);
    EXPECT_EQ(bytes, expected);
  }
  ASSERT_EQ(RdmaDeregTensor(bytes.data(), bytes_of_block), commSuccess);
}

}  // namespace
}  // namespace headrace::test_compat
