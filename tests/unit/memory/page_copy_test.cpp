// SPDX-License-Identifier: Apache-2.0
#include "memory/page_copy.hpp"

#include "support/plugin_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

namespace headrace {
namespace {

TEST(PageCopy, moves_every_length_at_every_alignment_and_touches_nothing_else) {
  constexpr std::size_t room = 3000;
  std::vector<std::byte> from(room);
  test::fill_pattern(from, 1);
  for (const CopyMode mode : {CopyMode::cached, CopyMode::streaming}) {
    for (std::size_t to_skew = 0; to_skew < 70; to_skew += 3) {
      for (std::size_t from_skew = 0; from_skew < 70; from_skew += 23) {
        for (const std::size_t length :
             {0, 1, 63, 64, 1023, 1024, 1025, 1087, 1152, 1153, 2047, 2048, 2500}) {
          std::vector<std::byte> to(room, std::byte{0});
          copy_bytes(to.data() + to_skew, from.data() + from_skew, length, mode);
          finish_streaming();
          std::vector<std::byte> expected(room, std::byte{0});
          std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(from_skew), length,
                      expected.begin() + static_cast<std::ptrdiff_t>(to_skew));
          ASSERT_EQ(to, expected) << length << " bytes at " << to_skew << " from " << from_skew;
        }
      }
    }
  }
}

TEST(PageCopy, fetches_what_comes_next_and_copies_nothing_of_it) {
  constexpr std::size_t page = 4096;
  constexpr std::size_t room = 4 * page;
  const std::unique_ptr<std::byte, decltype(&std::free)> from(
      static_cast<std::byte*>(std::aligned_alloc(page, room)), &std::free);
  test::fill_pattern({from.get(), room}, 1);
  for (const std::size_t from_skew : {0, 1, 16, 63, 64, 2048, 4095}) {
    for (const std::size_t to_skew : {0, 1, 16, 64}) {
      for (const std::size_t length : {0, 1, 255, 256, 257, 511, 4095, 4096, 4097, 8191}) {
        for (const std::size_t next : {0, 1, 256, 4096, 8192}) {
          std::vector<std::byte> to(room, std::byte{0});
          copy_and_fetch(to.data() + to_skew, from.get() + from_skew, length, {from.get(), next});
          std::vector<std::byte> expected(room, std::byte{0});
          std::copy_n(from.get() + from_skew, length,
                      expected.begin() + static_cast<std::ptrdiff_t>(to_skew));
          ASSERT_EQ(to, expected) << length << " bytes at " << to_skew << " from " << from_skew << ", then "
                                  << next;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
