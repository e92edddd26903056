// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/imports.hpp"
#include "memory/allocation.hpp"
#include "support/plugin_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace headrace::shm {
namespace {

TEST(Imports, see_the_owner_s_bytes_at_any_offset) {
  const Allocation allocation = Allocation::make(50'000).value();
  test::fill_pattern(allocation.bytes(), 1);
  const UniqueFd file(::dup(allocation.fd()));
  for (const std::uint64_t offset : {0, 1, 4095, 4096, 12'345}) {
    const auto memory = ImportedMemory::map(file, {1, offset, 10'000}).value();
    ASSERT_EQ(memory->bytes().size(), 10'000U);
    EXPECT_TRUE(std::ranges::equal(memory->bytes(), allocation.bytes().subspan(offset, 10'000)));
    memory->bytes()[17] = std::byte{99};
    EXPECT_EQ(allocation.bytes()[offset + 17], std::byte{99});
  }
}

TEST(Imports, refuse_what_could_end_this_process) {
  const Allocation allocation = Allocation::make(8192).value();
  const UniqueFd sealed(::dup(allocation.fd()));
  const auto code = [](const UniqueFd& file, SharedRegion region) {
    return ImportedMemory::map(file, region).code();
  };
  EXPECT_EQ(code(sealed, {1, 0, 8193}), Code::corrupt);
  EXPECT_EQ(code(sealed, {1, 8192, 1}), Code::corrupt);
  EXPECT_EQ(code(sealed, {1, ~std::uint64_t{0} - 10, 100}), Code::corrupt);
  EXPECT_EQ(code(sealed, {1, 4096, ~std::uint64_t{0} - 100}), Code::corrupt);
  EXPECT_EQ(code(sealed, {1, 0, 0}), Code::corrupt);
  const UniqueFd shrinking = host_link::create_memory_file("test", 8192).value();
  EXPECT_EQ(code(shrinking, {1, 0, 8192}), Code::corrupt) << "not sealed against shrinking";
}

}  // namespace
}  // namespace headrace::shm
