// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace headrace::shm {
namespace {

TEST(Copy, moves_every_length_at_every_alignment_and_touches_nothing_else) {
  constexpr std::size_t room = 3000;
  std::vector<std::byte> from(room);
  for (std::size_t i = 0; i < room; ++i) from[i] = static_cast<std::byte>(i * 31 + 1);
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

}  // namespace
}  // namespace headrace::shm
